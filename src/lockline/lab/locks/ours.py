"""Lockline on every backend, without and with its fence."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import lockline

from .face import Hold, Place, PublishedLock, Step

LEASE: dict[str, str] = {
    "holder-crashes": "late",
    "crash-between-steps": "late",
    "work-outlives-ttl": "safe",
    "foreign-release": "safe",
    # No lease can help one that is stopped between its check and its write.
    "frozen": "lost update",
    "client-clock": "safe",
    "server-clock": "lost update",
    "server-restarts-empty": "lost update",
    "failover": "lost update",
    "late-request": "safe",
    "lost-reply": "safe",
    "majority-partitioned": "safe",
    "herd": "safe",
    "starvation": "safe",
    "one-object": "safe",
    "fork": "safe",
}
"""What a lease with deadline, id and line gives on one server that can forget."""
CONSENSUS = {
    **LEASE, "server-clock": "safe", "server-restarts-empty": "safe", "failover": "safe", "minority-partitioned": "safe",
}  # fmt: skip
NEEDS_A_SERVER = {
    "server-clock", "server-restarts-empty", "failover", "late-request", "lost-reply", "majority-partitioned",
}  # fmt: skip
TITLES = {
    "local": "this machine", "redis": "Redis", "redlock": "Redlock", "zookeeper": "ZooKeeper", "etcd": "etcd", "consul": "Consul",
    "postgresql": "PostgreSQL", "mysql": "MariaDB",
}  # fmt: skip
EXPECTED: dict[str, dict[str, str]] = {
    "redis": LEASE,
    "redlock": {
        **{failure: verdict for failure, verdict in LEASE.items() if failure != "failover"},
        "one-of-five-restarts-empty": "safe",
        "minority-partitioned": "safe",
        "server-restarts-empty": "stuck for ever",
        # No order: `guarantees.fifo` is False. There is no line on five servers that know nothing of each other, so every client
        # hears of a release and asks all five; a release and an acquire alone are ten requests.
        "herd": "costly",
        "starvation": "late",
    },
    "zookeeper": CONSENSUS,
    "etcd": {failure: verdict for failure, verdict in CONSENSUS.items() if failure != "server-clock"},
    "consul": {failure: verdict for failure, verdict in CONSENSUS.items() if failure != "server-clock"},
    "postgresql": {**LEASE, "server-restarts-empty": "safe", "pooled-connection": "safe"},
    "mysql": {
        **{failure: verdict for failure, verdict in LEASE.items() if failure != "failover"},
        "server-restarts-empty": "safe",
        # MySQL pushes nothing: whoever waits asks again, the next in line most often.
        "herd": "costly",
    },
    # The kernel drops a lock of the process that is killed: that is noticed at once. And there is no server to lose.
    "local": {
        failure: {"holder-crashes": "safe", "crash-between-steps": "safe"}.get(failure, verdict)
        for failure, verdict in LEASE.items()
        if failure not in NEEDS_A_SERVER
    },
}
BECAUSE = {
    "redlock": {
        "server-restarts-empty": "All five forgot at once, and a server without its memory has no vote. Nobody gets a lock, and nobody gets "
        "one twice, until an operator says from which number on to count: lockline redlock init --floor.",
    },
}


class Ours(PublishedLock):
    """The library itself; the algorithm is in its own rooms."""

    source = "this project"
    knows = True
    renews = True

    def __init__(self, place: Place, step: Step) -> None:
        super().__init__(place, step)
        hosts = ",".join(f"{host}:{port}" for host, port in place.addresses)
        self._client = lockline.connect(place.url.format(hosts=hosts), **self.options(place))
        self._lock = self._client.lock(place.name, ttl=place.ttl)

    def options(self, place: Place) -> dict[str, Any]:
        """What this backend is told."""
        return {}

    def acquire(self, until: float) -> Hold | None:
        try:
            lease = self._lock.acquire(timeout=max(0.2, until - time.monotonic()))
        except (lockline.AcquireTimeout, lockline.WouldDeadlock):
            return None
        return Hold(lease, lease.token, lease)

    def holds(self, hold: Hold) -> bool:
        return bool(hold.value.valid)

    def release(self, hold: Hold | None) -> None:
        if hold is not None:
            hold.value.release()

    def close(self) -> None:
        self._client.close()


def _ours(backend: str, *, with_fence: bool) -> type[Ours]:
    expects = {**EXPECTED[backend]}
    if with_fence:
        expects = {failure: "safe" if verdict == "lost update" else verdict for failure, verdict in expects.items()}
        expects |= {"herd": "not applicable", "starvation": "not applicable"}
    end = "-fence" if with_fence else ""

    class Made(Ours):
        __doc__ = f"Lockline on {TITLES[backend]}{', with its fence' if with_fence else ''}."
        id = f"lockline-{backend}{end}"
        title = f"Lockline, {TITLES[backend]}{' + fence' if with_fence else ''}"
        family = backend
        fenced = with_fence
        expected: ClassVar = expects
        because: ClassVar = BECAUSE.get(backend, {})

    Made.__name__ = Made.__qualname__ = f"Ours_{backend}{'_fence' if with_fence else ''}"
    globals()[Made.__name__] = Made  # a client's process finds it by its name
    return Made


ALL = [_ours(backend, with_fence=fence) for backend in TITLES for fence in (False, True)]
