"""The first three stops of the road: SETNX, SETNX and EXPIRE, and the two in MULTI."""

from __future__ import annotations

from typing import ClassVar

from .face import Hold
from .redis_face import RedisLock

CHINESE_ROAD = "Qian Wenpin, Redis in depth (in Chinese), chapter 1"


class Setnx(RedisLock):
    """Who sets the key has the lock. Nothing ends it but its owner."""

    id = "setnx"
    title = "SETNX"
    source = CHINESE_ROAD
    expires = False
    expected: ClassVar = {
        "holder-crashes": "stuck for ever",
        "crash-between-steps": "stuck for ever",
        "work-outlives-ttl": "safe",
        "foreign-release": "lost update",
        "frozen": "late",
        "client-clock": "safe",
        "server-clock": "safe",
        "server-restarts-empty": "lost update",
        "failover": "lost update",
        "late-request": "stuck for ever",
        "lost-reply": "stuck for ever",
        "majority-partitioned": "late",
        "herd": "costly",
        "starvation": "late",
        "one-object": "safe",
        "fork": "lost update",
    }

    def try_acquire(self) -> Hold | None:
        return Hold("true") if self.redis.setnx(self.key, "true") else None

    def release(self, hold: Hold | None) -> None:
        self.redis.delete(self.key)


class SetnxExpire(Setnx):
    """The same, and then an expiry: two requests, with a crash's room between them."""

    id = "setnx-expire"
    title = "SETNX, then EXPIRE"
    expires = True
    crash_at: ClassVar[str | None] = "between SETNX and EXPIRE"
    expected: ClassVar = {
        **Setnx.expected,
        "holder-crashes": "late",
        "work-outlives-ttl": "lost update",
        "frozen": "lost update",
        "server-clock": "lost update",
        "majority-partitioned": "lost update",
        # The request that comes late is SETNX: its EXPIRE was never sent.
    }

    def try_acquire(self) -> Hold | None:
        if not self.redis.setnx(self.key, "true"):
            return None
        self.step("between SETNX and EXPIRE")
        self.redis.pexpire(self.key, self.ttl_ms)
        return Hold("true")


class SetnxExpireMulti(SetnxExpire):
    """Both in a transaction: it has no `if`, so who does not get the lock still moves its expiry."""

    id = "setnx-expire-multi"
    title = "SETNX and EXPIRE in MULTI"
    crash_at = None
    expected: ClassVar = {
        **SetnxExpire.expected,
        "holder-crashes": "stuck for ever",
        "crash-between-steps": "stuck for ever",
        # As long as somebody asks, the dead holder's time never runs out; so a slow holder is kept safe by its rivals.
        "work-outlives-ttl": "safe",
        "frozen": "late",
        "majority-partitioned": "late",
        "foreign-release": "lost update",
    }
    because: ClassVar = {
        "holder-crashes": "A transaction has no `if`: EXPIRE runs for those too whose SETNX failed. "
        "Every attempt of a waiter gives the dead holder a new ttl, so it never ends while anybody waits.",
    }

    def try_acquire(self) -> Hold | None:
        both = self.redis.pipeline(transaction=True)
        both.setnx(self.key, "true")
        both.pexpire(self.key, self.ttl_ms)
        was_set, _ = both.execute()
        return Hold("true") if was_set else None
