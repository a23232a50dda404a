"""What the doctor says of a Redis as it is set up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

import lockline
from lockline.backends.redis.doctor import _clock, _version
from lockline.core.backend import Finding
from tests.servers.process import wait_for
from tests.servers.redis import RedisCluster, RedisServer, a_redis

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
        wait_for(lambda: server.command("INFO", "replication")["connected_slaves"] == 1, 60, "the replica")
        assert "1 replica" in said(connect(server.url), "warning")
        (lacking,) = [each for each in connect(server.url, wait_replicas=3).examine() if each.level == "error"]
        assert "of the 3 replicas" in lacking.text
        assert "lower wait_replicas" in lacking.cure
        assert "is a replica" in said(connect(replica.url, socket_timeout=1), "error")


def test_a_missing_permission_is_named(server: RedisServer, connect: Connect) -> None:
    server.command("ACL", "SETUSER", "poor", "on", ">p", "~{ll:*", "+evalsha", "+eval", "+time", "+hmget", "+info")
    client = connect(f"redis://poor:p@127.0.0.1:{server.port}")
    assert "cannot take a lock" in said(client, "error")
    server.command("ACL", "DELUSER", "poor")


def test_a_user_who_may_not_listen_is_told_so(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "deaf", "on", ">p", "~*", "resetchannels", "+@all")

    async def story() -> list[Finding]:
        async with lockline.aio.connect(f"redis://deaf:p@127.0.0.1:{server.port}") as client:
            return await client.examine()

    (error,) = [each for each in asyncio.run(story()) if each.level == "error"]
    assert "cannot listen" in error.text
    assert "&ll:*" in error.cure
    server.command("ACL", "DELUSER", "deaf")


@pytest.mark.slow
def test_every_shard_of_a_cluster_is_examined(shards: RedisCluster, connect: Connect) -> None:
    poor = shards.nodes[2]
    poor.command("ACL", "SETUSER", "default", "-hset")
    try:
        client = connect(shards.url)
        assert f"{poor.port}: cannot take a lock" in said(client, "error")
        assert said(client, "ok").count("may do everything") == 2
    finally:
        poor.command("ACL", "SETUSER", "default", "+hset")


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
