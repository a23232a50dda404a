"""The re-entrant lock by a count in a thread-local, without and with the count's own expiry."""

from __future__ import annotations

import threading
import time
from typing import ClassVar

from .face import Hold, Place, Step
from .redis_face import RedisLock
from .set_nx_ex import SetNxEx


class Reentrant(RedisLock):
    """Who has it in this thread gets it again without a question, whatever became of the key since."""

    id = "reentrant"
    title = "re-entrant by thread-local count"
    source = "Qian Wenpin, Redis in depth (in Chinese), chapter 1: reentrant_lock.py"
    expected: ClassVar = {**SetNxEx.expected, "one-object": "lost update"}
    because: ClassVar = {
        "one-object": "The count belongs to the thread, and the tasks of an event loop share one thread. "
        "The second task finds the count of the first and is told that it holds already.",
    }

    def __init__(self, place: Place, step: Step) -> None:
        super().__init__(place, step)
        self._mine = threading.local()

    def _counts(self) -> dict[str, int]:
        if not hasattr(self._mine, "counts"):
            self._mine.counts = {}
        counts: dict[str, int] = self._mine.counts
        return counts

    def try_acquire(self) -> Hold | None:
        counts = self._counts()
        if self.key in counts:
            counts[self.key] += 1
            return Hold(self.key)
        if not self.redis.set(self.key, "true", nx=True, px=self.ttl_ms):
            return None
        counts[self.key] = 1
        return Hold(self.key)

    def release(self, hold: Hold | None) -> None:
        counts = self._counts()
        if self.key not in counts:
            return
        counts[self.key] -= 1
        if counts[self.key] <= 0:
            del counts[self.key]
            self.redis.delete(self.key)


class ReentrantExpiry(Reentrant):
    """The count has an expiry too, by the client's clock, so that a thread does not enter again what is over."""

    id = "reentrant-expiry"
    title = "re-entrant, and the count expires"
    knows = True
    release_at = "between the look at the clock and DEL"
    expected: ClassVar = {
        **Reentrant.expected,
        "work-outlives-ttl": "safe",
        "majority-partitioned": "safe",
        "client-clock": "lost update",
    }

    def try_acquire(self) -> Hold | None:
        if self.key in self._counts() and time.time() >= self._mine.until:
            del self._counts()[self.key]
        began = time.time()
        hold = super().try_acquire()
        if hold is not None and self._counts()[self.key] == 1:
            self._mine.until = began + self.place.ttl
        return hold

    def holds(self, hold: Hold) -> bool:
        return self.key in self._counts() and time.time() < self._mine.until

    def release(self, hold: Hold | None) -> None:
        if self.key in self._counts() and time.time() >= self._mine.until:
            del self._counts()[self.key]
        self.step("between the look at the clock and DEL")
        super().release(hold)
