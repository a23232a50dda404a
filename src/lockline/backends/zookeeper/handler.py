"""kazoo's threads, without those steps that a lock does not need."""

from __future__ import annotations

import logging
import select
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

log = logging.getLogger("lockline.zookeeper")


class LeanHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Watch events are handled where they are read, and no unreachable server takes up the time of a whole session."""

    def __init__(self, servers: int) -> None:
        super().__init__()
        self._servers = servers
        self._polls: dict[tuple[int, ...], select.poll] = {}

    def start(self) -> None:
        """No worker threads: what they would do is done in the connection's own."""
        self._running = True

    def stop(self) -> None:
        self._running = False

    def select(self, readers: Any, writers: Any, others: Any, timeout: float | None = None) -> Any:
        """As kazoo's, which makes and closes an epoll each time; a poll is enough for two sockets."""
        numbers = (*(one.fileno() for one in readers), -1, *(one.fileno() for one in writers))
        poll = self._polls.get(numbers)
        if poll is None:
            if len(self._polls) > 8:
                self._polls.clear()
            poll = self._polls[numbers] = select.poll()
            for one in readers:
                poll.register(one, select.POLLIN)
            for one in writers:
                poll.register(one, select.POLLOUT)
        ready = {number for number, _ in poll.poll(None if timeout is None else max(0.0, timeout * 1000))}
        return [one for one in readers if one.fileno() in ready], [one for one in writers if one.fileno() in ready], []

    def create_connection(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """As kazoo's, but a server that does not answer is given up in time to ask the others within the session."""
        if timeout is not None:
            timeout = max(0.2, timeout / (2 * self._servers))
        return super().create_connection(*args, timeout=timeout, **options)

    def dispatch_callback(self, callback: Any) -> None:
        """At once, in the connection's thread: ours only set signals."""
        try:
            callback.func(*callback.args)
        except Exception:
            # kazoo's connection must outlive whatever goes wrong here.
            log.exception("a watch event could not be handled")
