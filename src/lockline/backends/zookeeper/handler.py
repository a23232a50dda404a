"""kazoo's threads and sockets, without those steps that a lock does not need."""

from __future__ import annotations

import logging
import select
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from kazoo.handlers.threading import SequentialThreadingHandler

log = logging.getLogger("lockline.zookeeper")

STUCK: Final = 5.0
"""Seconds after which a socket that takes no more bytes is given up."""


class ReadAhead(socket.socket):
    """A socket that reads ahead, so that the answers to requests that went out together cost one system call.

    kazoo reads the length and the body of each answer by themselves, and looks with a select before each. It skips the
    select while `pending()` says that there is something, which it knows from TLS sockets.
    """

    ahead = b""
    """What is here and nobody has taken yet."""

    def pending(self) -> int:
        """How many bytes are here already."""
        return len(self.ahead)

    def read_on(self) -> bool:
        """Read what has come; False where the other side has hung up."""
        try:
            more = super().recv(65536)
        except BlockingIOError:
            return True
        self.ahead += more
        return bool(more)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self.ahead:
            self.ahead = super().recv(65536)
        data, self.ahead = self.ahead[:size], self.ahead[size:]
        return data

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data)
        except BlockingIOError:
            full = select.poll()
            full.register(self, select.POLLOUT)
            full.poll(STUCK * 1000)
            return super().send(data)

    def send_all(self, data: bytearray) -> None:
        """Send all of this."""
        while data:
            del data[: self.send(data)]


class LeanHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, without those steps that a lock does not need.

    Watch events are handled where they are read, and no unreachable server takes up the time of a whole session.
    """

    def __init__(self, servers: int) -> None:
        super().__init__()
        self._servers = servers
        self._poll = select.poll()
        self._polled: list[int] = []
        self.exchange: Callable[[ReadAhead, Any, float], list[Any]] | None = None
        """What kazoo's loop does instead of a wait for its two sockets; comes back with those that it has to see to."""

    def start(self) -> None:
        """No worker threads: what they would do is done in the connection's own."""
        self._running = True

    def stop(self) -> None:
        self._running = False

    def select(self, readers: Any, writers: Any, others: Any, timeout: float | None = None) -> Any:
        """As kazoo's, which makes and closes an epoll each time; a poll that stays is enough for two sockets."""
        if not readers and isinstance(writers[0], ReadAhead):
            # Its `send` waits by itself, in the rare case that it has to.
            return [], writers, []
        if (
            self.exchange is not None
            and timeout is not None
            and len(readers) == 2
            and isinstance(readers[0], ReadAhead)
        ):
            return self.exchange(readers[0], readers[1], timeout), [], []
        for reader in readers:
            # Also what came in one piece with what was read before it, over TLS: no poll sees that.
            if isinstance(reader, (ReadAhead, ssl.SSLSocket)) and reader.pending():
                return [reader], [], []
        numbers = [one.fileno() for one in (*readers, *writers)]
        if writers or numbers != self._polled:
            self._poll = select.poll()
            for one in readers:
                self._poll.register(one, select.POLLIN)
            for one in writers:
                self._poll.register(one, select.POLLOUT)
            self._polled = [] if writers else numbers
        found = self._poll.poll(None if timeout is None else max(0.0, timeout * 1000))
        ready = [number for number, _ in found]
        return [one for one in readers if one.fileno() in ready], [one for one in writers if one.fileno() in ready], []

    def create_connection(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """As kazoo's, but a server that does not answer is given up in time to ask the others within the session."""
        if timeout is not None:
            timeout = max(0.2, timeout / (2 * self._servers))
        made = super().create_connection(*args, timeout=timeout, **options)
        if isinstance(made, ssl.SSLSocket):
            return made
        return ReadAhead(made.family, made.type, made.proto, fileno=made.detach())

    def dispatch_callback(self, callback: Any) -> None:
        """At once, in the connection's thread: ours only set signals."""
        try:
            callback.func(*callback.args)
        except Exception:
            # kazoo's connection must outlive whatever goes wrong here.
            log.exception("a watch event could not be handled")
