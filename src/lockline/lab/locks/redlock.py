"""Redlock, to the letter: N servers one after the other, a timeout for each, validity, drift, retry, release everywhere."""

from __future__ import annotations

import random
import secrets
import time
from contextlib import suppress
from typing import ClassVar

from .face import Hold, Place, PublishedLock, Step
from .owner import COMPARE_AND_DELETE, OwnerCompareDelete
from .redis_face import a_client

NODE_TIMEOUT = 0.05
"""Seconds for one server, as published (5 to 50 ms): a dead one must not eat up the validity."""
DRIFT = 0.01
RETRY = 0.2
"""Seconds at most between two rounds, at random, so that rivals do not split the votes for ever."""


class Redlock(PublishedLock):
    """Majority and validity. No token, and the clock is the clock on the wall."""

    id = "redlock-as-published"
    title = "Redlock as published, five servers"
    family = "redlock"
    source = "antirez, redis.io: Distributed locks with Redis; Is Redlock safe?"
    knows = True
    crash_at = "after the last server"
    clock_at = "after the first server"
    expected: ClassVar = {
        **OwnerCompareDelete.expected,
        "work-outlives-ttl": "safe",
        "client-clock": "lost update",
        "failover": "not applicable",
        "one-of-five-restarts-empty": "lost update",
        # Two of five are not enough: it undoes them everywhere and asks again.
        "lost-reply": "safe",
        "minority-partitioned": "safe",
        "majority-partitioned": "safe",
    }
    because: ClassVar = {
        "server-clock": "The lock is on three of five servers. The clock of one of them jumps, its key expires early, "
        "and with the two that never heard of it there is a second majority.",
        "one-of-five-restarts-empty": "The lock is on three of five servers. One of them restarts without its memory, "
        "and with the two that never heard of it there is a second majority.",
    }

    def __init__(self, place: Place, step: Step) -> None:
        super().__init__(place, step)
        self.servers = [a_client(host, port, NODE_TIMEOUT) for host, port in place.addresses]
        self.quorum = len(self.servers) // 2 + 1

    def acquire(self, until: float) -> Hold | None:
        while True:
            hold = self.try_acquire()
            if hold is not None or time.monotonic() > until:
                return hold
            time.sleep(random.uniform(0, RETRY))

    def try_acquire(self) -> Hold | None:
        ttl = self.place.ttl
        value = secrets.token_hex(8)
        began = time.time()
        got = 0
        for number, server in enumerate(self.servers):
            with suppress(Exception):
                got += bool(server.set(self.place.name, value, nx=True, px=int(ttl * 1000)))
            if number == 0:
                self.step("after the first server")
        self.step("after the last server")
        validity = ttl - (time.time() - began) - (ttl * DRIFT + 0.002)
        if got >= self.quorum and validity > 0:
            return Hold((value, time.time() + validity))
        self._release(value)
        return None

    def holds(self, hold: Hold) -> bool:
        return bool(time.time() < hold.value[1])

    def release(self, hold: Hold | None) -> None:
        if hold is not None:
            self._release(hold.value[0])

    def _release(self, value: str) -> None:
        for server in self.servers:
            with suppress(Exception):
                server.eval(COMPARE_AND_DELETE, 1, self.place.name, value)

    def close(self) -> None:
        for server in self.servers:
            server.close()
