"""What the locks on one Redis share: a connection that repeats nothing behind their backs."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .face import Place, PublishedLock, Step


def a_client(host: str, port: int, patience: float) -> Any:
    """One server; who wants to repeat a command says so itself."""
    return redis.Redis(
        host=host, port=port, socket_timeout=patience, socket_connect_timeout=patience, retry=Retry(NoBackoff(), 0),
        decode_responses=True, protocol=2, driver_info=None, lib_name=None, lib_version=None,
    )  # fmt: skip


class RedisLock(PublishedLock):
    """A lock on one server."""

    def __init__(self, place: Place, step: Step) -> None:
        super().__init__(place, step)
        (host, port) = place.addresses[0]
        self.redis = a_client(host, port, place.patience)
        self.key = place.name
        self.ttl_ms = int(place.ttl * 1000)

    def close(self) -> None:
        self.redis.close()
