"""The key has an owner: look and delete, compare and delete in one step, and owner's value and a watchdog."""

from __future__ import annotations

import secrets
from typing import ClassVar

from .face import Hold
from .redis_face import RedisLock
from .set_nx_ex import BlindWatchdog, SetNxEx

COMPARE_AND_DELETE = """
    -- one step on the server: nobody comes between the look and the delete
    if redis.call('GET', KEYS[1]) == ARGV[1] then
        return redis.call('DEL', KEYS[1])
    end
    return 0
"""


class OwnerLookDelete(RedisLock):
    """A random value says whose it is. The look and the delete are two requests."""

    id = "owner-look-delete"
    title = "owner's value, GET then DEL"
    source = "an article in Chinese on four versions of a Redis lock, version 3"
    release_at: ClassVar[str | None] = "between GET and DEL"
    expected: ClassVar = {**SetNxEx.expected}

    def try_acquire(self) -> Hold | None:
        mine = secrets.token_hex(8)
        return Hold(mine) if self.redis.set(self.key, mine, nx=True, px=self.ttl_ms) else None

    def release(self, hold: Hold | None) -> None:
        if hold is not None and self.redis.get(self.key) == hold.value:
            self.step("between GET and DEL")
            self.redis.delete(self.key)


class OwnerCompareDelete(OwnerLookDelete):
    """The single-server lock that redis.io recommends."""

    id = "owner-compare-delete"
    title = "owner's value, compare and delete in Lua"
    source = "redis.io, Distributed locks with Redis: correct implementation with a single instance"
    release_at = None
    expected: ClassVar = {**OwnerLookDelete.expected, "foreign-release": "safe"}

    def release(self, hold: Hold | None) -> None:
        if hold is not None:
            self.redis.eval(COMPARE_AND_DELETE, 1, self.key, hold.value)


class OwnerWatchdog(OwnerCompareDelete):
    """And a thread that renews while the holder works: Redisson's way."""

    id = "watchdog"
    title = "owner's value and a watchdog"
    source = "Redisson; an article in Chinese on four versions of a Redis lock, version 4"
    renews = True
    expected: ClassVar = {**OwnerCompareDelete.expected, "work-outlives-ttl": "safe"}

    def try_acquire(self) -> Hold | None:
        hold = super().try_acquire()
        if hold is None:
            return None
        dog = BlindWatchdog(self)
        dog.start()
        return Hold((hold.value, dog))

    def release(self, hold: Hold | None) -> None:
        if hold is not None:
            value, dog = hold.value
            dog.stop()
            super().release(Hold(value))
