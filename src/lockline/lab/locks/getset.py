"""SETNX, GET and GETSET: the expiry is a time in the value, and every client compares it with its own clock."""

from __future__ import annotations

import time
from typing import ClassVar

from .face import Hold
from .redis_face import RedisLock
from .set_nx_ex import SetNxEx


class Getset(RedisLock):
    """From before SET had options. It never gets stuck, as long as everybody's clock says the same."""

    id = "getset"
    title = "SETNX, GET, GETSET by client clocks"
    source = "redis.io, SETNX; retold in Chinese by several"
    release_at = "between the look at the clock and DEL"
    expected: ClassVar = {
        **SetNxEx.expected,
        "client-clock": "lost update",
        # The time is in the value: a server's clock is not asked.
        "server-clock": "safe",
    }
    because: ClassVar = {
        "client-clock": "The expiry is a time of day that the holder wrote and every other client compares with its own clock. "
        "One whose clock is ahead finds every lock expired and takes it over.",
    }

    def try_acquire(self) -> Hold | None:
        mine = time.time() + self.place.ttl
        if self.redis.setnx(self.key, mine):
            return Hold(mine)
        old = self.redis.get(self.key)
        if old is None or float(old) > time.time():
            return None
        mine = time.time() + self.place.ttl
        before = self.redis.getset(self.key, mine)
        # Somebody else may have been quicker. Then this GETSET has moved that one's expiry, which nobody mends.
        return Hold(mine) if before == old else None

    def release(self, hold: Hold | None) -> None:
        if hold is not None and time.time() < hold.value:
            self.step("between the look at the clock and DEL")
            self.redis.delete(self.key)
