"""What the doctor says of a Redis as it is set up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import lockline
from lockline.backends.redis.doctor import _clock, _version
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer, a_redis

pytestmark = pytest.mark.server

Connect = Callable[..., lockline.Client]


def said(client: lockline.Client, level: str) -> str:
    return "\n".join(finding.text for finding in client.examine() if finding.level == level)


def test_a_good_server_gets_no_warning(own_server: RedisServer, connect: Connect) -> None:
    client = connect(own_server.url)
    assert said(client, "warning") == ""
    assert said(client, "error") == ""
    assert "may do everything" in said(client, "ok")
    assert client.list() == []


def test_each_danger_is_named(connect: Connect) -> None:
    with a_redis("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        warnings = said(connect(server.url), "warning")
        assert "allkeys-lru" in warnings
        assert "append-only" in warnings


def test_replicas_without_waiting_for_them(server: RedisServer, connect: Connect) -> None:
    with a_redis("--replicaof", "127.0.0.1", str(server.port)) as replica:
        wait_for(lambda: server.command("INFO", "replication")["connected_slaves"] == 1, 10, "the replica")
        assert "1 replica" in said(connect(server.url), "warning")
        assert "of the 3 replicas" in said(connect(server.url, wait_replicas=3), "error")
        assert "is a replica" in said(connect(replica.url, socket_timeout=0.2), "error")


def test_a_missing_permission_is_named(server: RedisServer, connect: Connect) -> None:
    server.command("ACL", "SETUSER", "poor", "on", ">p", "~{ll:*", "+evalsha", "+eval", "+time", "+hmget", "+info")
    client = connect(f"redis://poor:p@127.0.0.1:{server.port}")
    assert "cannot take a lock" in said(client, "error")
    server.command("ACL", "DELUSER", "poor")


def test_nobody_there(connect: Connect) -> None:
    findings = connect("redis+cluster://127.0.0.1:1", socket_timeout=0.2).examine()
    assert [finding.level for finding in findings] == ["error"]
    assert "cannot reach" in findings[0].text


def test_an_old_server_and_a_wrong_clock() -> None:
    assert _version("h:1", {"redis_version": "6.0.16"}).level == "error"
    assert _version("h:1", {"redis_version": "7.2.4", "valkey_version": "8.0.1"}).text == "h:1: Valkey 8.0.1"
    assert _clock("h:1", 100.0, 99.9, 100.1).level == "ok"
    assert "30.0 s ahead" in _clock("h:1", 130.0, 99.9, 100.0).text
    assert "behind" in _clock("h:1", 70.0, 100.0, 100.1).text


def test_the_same_in_asyncio(server: RedisServer) -> None:
    async def story() -> list[str]:
        async with lockline.aio.connect(server.url) as client:
            return [finding.level for finding in await client.examine()]

    levels = asyncio.run(story())
    assert "error" not in levels
    assert "ok" in levels
