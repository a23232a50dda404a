"""One request with its expiry, and DEL to let go; without and with a watchdog."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import ClassVar

from .face import Hold, Place, Step
from .redis_face import RedisLock
from .setnx import CHINESE_ROAD


class SetNxEx(RedisLock):
    """Redis 2.6.12 made one step of two. Whose key it is, nobody knows."""

    id = "set-nx-ex"
    title = "SET NX EX, then DEL"
    source = CHINESE_ROAD
    expected: ClassVar = {
        "holder-crashes": "late",
        "crash-between-steps": "late",
        "work-outlives-ttl": "lost update",
        "foreign-release": "lost update",
        "frozen": "lost update",
        "client-clock": "safe",
        "server-clock": "lost update",
        "server-restarts-empty": "lost update",
        "failover": "lost update",
        "late-request": "late",
        "lost-reply": "late",
        "majority-partitioned": "lost update",
        "herd": "costly",
        "starvation": "late",
        "one-object": "safe",
        "fork": "lost update",
    }

    def try_acquire(self) -> Hold | None:
        return Hold("true") if self.redis.set(self.key, "true", nx=True, px=self.ttl_ms) else None

    def release(self, hold: Hold | None) -> None:
        self.redis.delete(self.key)


class BlindWatchdog(threading.Thread):
    """Renews every third of the ttl, blindly, until it is told to stop."""

    def __init__(self, lock: RedisLock) -> None:
        super().__init__(daemon=True)
        self._lock = lock
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(self._lock.place.ttl / 3):
            with suppress(Exception):  # as published: what goes wrong here, nobody hears of
                self._lock.redis.pexpire(self._lock.key, self._lock.ttl_ms)

    def stop(self) -> None:
        self._over.set()


class SetNxExWatchdog(SetNxEx):
    """With a thread that renews: does that also cure the foreign release?"""

    id = "set-nx-ex-watchdog"
    title = "SET NX EX and a watchdog, then DEL"
    source = "the question in an article in Chinese on four versions of a Redis lock"
    renews = True
    expected: ClassVar = {**SetNxEx.expected, "work-outlives-ttl": "safe"}
    because: ClassVar = {
        "foreign-release": "The watchdog is a thread of the same process: a freeze stops both. "
        "The ttl runs out, the next one comes in, and the DEL of the one that wakes up still removes whatever is there.",
    }

    def __init__(self, place: Place, step: Step) -> None:
        super().__init__(place, step)
        self._dogs: dict[int, BlindWatchdog] = {}

    def try_acquire(self) -> Hold | None:
        if super().try_acquire() is None:
            return None
        dog = BlindWatchdog(self)
        dog.start()
        return Hold(dog)

    def release(self, hold: Hold | None) -> None:
        if hold is not None:
            hold.value.stop()
        super().release(hold)
