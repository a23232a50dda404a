"""`redis://` and its kin: one server, Sentinel, Cluster."""

from __future__ import annotations

from typing import Any

from ...runtime import Runtime
from .backend import RedisBackend
from .commands import PREFIX, a_prefix
from .target import understand

MOST_CONNECTIONS = 4


def connect(target: Any, runtime: Runtime, **options: Any) -> RedisBackend:
    """The backend for a URL or a client of redis-py; nothing is sent.

    `wait_replicas`: a grant counts only when that many replicas have it; for Sentinel and Cluster, where a failover
    must not forget a holder lightly. `max_connections`: blocking threads share that many per server.
    `prefix`: what keys and channels begin with; for programs that share a Redis and not their locks.
    `timeout`: one unanswered try is given up after so many seconds. `tls`, `ca`, `cert`, `key` and their kin as everywhere.
    Other options are those of redis-py's connections (`password`, `protocol`, `client_name`, ...).
    """
    found = understand(target, runtime.flavour, options)
    return RedisBackend(
        found,
        runtime,
        wait_replicas=found.own.get("wait_replicas", 0),
        max_connections=found.own.get("max_connections", MOST_CONNECTIONS),
        prefix=a_prefix(found.own.get("prefix", PREFIX)),
    )


__all__ = ["RedisBackend", "connect"]
