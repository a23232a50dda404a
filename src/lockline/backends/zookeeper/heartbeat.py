"""One thread per client that comes when the next thing is due: a claim to remove, a session to confirm.

A thread in asyncio too: a loop that is blocked for longer than a ttl must not keep others from the lock.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from ...runtime import Runtime

log = logging.getLogger("lockline.zookeeper")


class Heartbeat:
    """Calls `beat(now)` when it is due; what that returns is when to come again."""

    def __init__(self, beat: Callable[[float], float], runtime: Runtime) -> None:
        self._beat: weakref.WeakMethod[Callable[[float], float]] = weakref.WeakMethod(beat)
        self._now = runtime.now
        self._due = float("inf")
        self._wake = threading.Condition()
        self._running = False
        self._stopped = False

    def by(self, moment: float) -> None:
        """Come at that moment at the latest."""
        if self._running and moment >= self._due:
            return
        with self._wake:
            self._due = min(moment, self._due)
            self._wake.notify()
        if not self._running and not self._stopped:
            threading.Thread(target=self._run, name="lockline-zookeeper", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        with self._wake:
            self._stopped = True
            self._wake.notify()

    def _run(self) -> None:
        with self._wake:
            # Whoever started us may have been cut short and come again: one is enough.
            if self._running:
                return
            self._running = True
        while True:
            with self._wake:
                while not self._stopped and (left := self._due - self._now()) > 0:
                    # In pieces, so that a client that nobody has any more is noticed, and time asleep too.
                    self._wake.wait(min(left, 5.0))
                    if self._beat() is None:
                        return
                if self._stopped:
                    return
                self._due = float("inf")
            beat = self._beat()
            if beat is None:
                return
            try:
                again = beat(self._now())
            except Exception:
                log.exception("the heartbeat met an unexpected error and goes on")
                again = self._now() + 0.5
            del beat
            with self._wake:
                self._due = min(self._due, again)
