"""Which cells of the matrix are run: a fixed sample in `make test`, every one in `make test-full`."""

from __future__ import annotations

from typing import Final

from lockline.lab import failures, locks

from ..tier import sample

Cell = tuple[str, str]
"""A lock and a failure."""

SAMPLE: Final[dict[str, tuple[str, ...]]] = {
    "holder-crashes": ("setnx", "watchdog"),
    "crash-between-steps": ("setnx-expire",),
    "work-outlives-ttl": ("owner-compare-delete",),
    "foreign-release": ("owner-look-delete",),
    # The same freeze on every store, without a fence and with one.
    "frozen": (
        "set-nx-ex", "lockline-local", "lockline-local-fence", "lockline-redis", "lockline-redis-fence",
        "lockline-redlock", "lockline-redlock-fence", "lockline-zookeeper", "lockline-zookeeper-fence", "lockline-etcd", "lockline-etcd-fence",
        "lockline-consul", "lockline-consul-fence", "lockline-postgresql", "lockline-postgresql-fence",
        "lockline-mysql", "lockline-mysql-fence",
    ),
    "client-clock": ("getset",),
    "server-clock": ("lockline-redis", "lockline-redis-fence"),
    "server-restarts-empty": ("set-nx-ex-watchdog",),
    "failover": ("lockline-redis", "lockline-redis-fence"),
    "one-of-five-restarts-empty": ("redlock-as-published",),
    "late-request": ("set-nx-ex",),
    "lost-reply": ("row-expiry", "lockline-redis"),
    "minority-partitioned": ("lockline-redlock",),
    "majority-partitioned": ("zookeeper-basic", "lockline-redis"),
    "herd": ("set-nx-ex", "lockline-redis"),
    "starvation": ("setnx",),
    "one-object": ("reentrant", "reentrant-expiry"),
    "fork": ("zookeeper-sequential", "setnx-expire-multi", "row"),
    "pooled-connection": ("advisory",),
}  # fmt: skip
"""Each failure with the locks that meet it in `make test`: every failure and every lock at least once, and every verdict. That Lockline on
Redis is in order, outlives its ttl and refuses a late request is in tests/contract too, so that those cells are for `make test-full`."""


def chosen() -> list[Cell]:
    """The cells that this run judges."""
    return sample(
        [(lock, failure) for failure, those in SAMPLE.items() for lock in those],
        [(lock, failure) for lock in locks.catalogue() for failure in failures.catalogue()],
    )
