"""Redis in the contract suite: one server, a primary under sentinels, a cluster of three shards."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.servers.redis import RedisCluster, RedisServer, SentinelTrio

from .worlds import World, joins


class RedisKin(World):
    """Each test has a prefix of its own."""

    marks: ClassVar[tuple[pytest.MarkDecorator, ...]] = (pytest.mark.server,)
    wall_clock = True
    exclusion = "server"
    token_survives: ClassVar = frozenset({"release", "expiry", "restart", "failover", "wipe"})
    shares_a_connection = True
    servers: Any

    def place(self) -> str:
        return f"{self.servers.url}?prefix={self.unique()}"

    def nodes(self) -> list[RedisServer]:
        return list(self.servers.nodes)

    def debris(self, place: str) -> list[str]:
        """Keys without a ttl, and keys that hold more than the memory of a last ticket, of a withdrawal or of an eviction."""
        (prefix,) = parse_qs(urlsplit(place).query)["prefix"]
        found = []
        for node in self.nodes():
            if node.command("ROLE")[0] != "master":
                continue
            for key in node.command("KEYS", f"{{{prefix}:*"):
                fields = [
                    name
                    for name in node.command("HKEYS", key)
                    if name not in ("last", "notes") and name[0] not in "-=o"
                ]
                if fields or node.command("PTTL", key) == -1:
                    found.append(f"{key}: {fields}")
        return found

    def open(self) -> None:
        self.servers.start()

    def close(self) -> None:
        self.servers.stop()


@joins
class RedisWorld(RedisKin):
    """One server."""

    name = "redis"

    def open(self) -> None:
        self.servers = RedisServer(self.folder)
        super().open()

    def nodes(self) -> list[RedisServer]:
        return [self.servers]


@joins
class SentinelWorld(RedisKin):
    """A primary with two replicas and three sentinels."""

    name = "redis-sentinel"
    marks = (pytest.mark.server, pytest.mark.slow)

    def open(self) -> None:
        self.servers = SentinelTrio(self.folder)
        super().open()


@joins
class ClusterWorld(RedisKin):
    """Three shards, each with a replica."""

    name = "redis-cluster"
    marks = (pytest.mark.server, pytest.mark.slow)
    # At each of three servers three connections more than one thread needs and a subscription; and the bell for all.
    most_files = 3 * 4 + 2

    def open(self) -> None:
        self.servers = RedisCluster(self.folder)
        super().open()
