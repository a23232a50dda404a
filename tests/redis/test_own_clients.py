"""Classes that users derive from redis-py's own are taken for what they are."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.cluster
import redis.sentinel

import lockline
from lockline import ConfigError
from tests.servers.redis import RedisServer


class Shop(redis.Redis):
    """As programs have them, to add a method or two."""


class BranchOffice(Shop):
    pass


class LoopShop(redis.asyncio.Redis):
    pass


class LoopShops(redis.asyncio.cluster.RedisCluster):
    pass


class Watch(redis.sentinel.Sentinel):
    pass


@pytest.mark.parametrize(
    ("client", "options", "url"),
    [
        (Shop(host="h", port=1), {}, "redis://h:1"),
        (BranchOffice(host="h", port=1, db=2), {}, "redis://h:1/2"),
        (LoopShop(host="h", port=1), {}, "redis://h:1"),
        (LoopShops(host="h", port=1), {}, "redis+cluster://h:1"),
        (Watch([("h", 1)]), {"service": "lines"}, "redis+sentinel://h:1/lines"),  # type: ignore[no-untyped-call]
    ],
)
def test_a_subclass_is_as_good_as_its_base(client: Any, options: dict[str, Any], url: str) -> None:
    assert lockline.connect(client, **options).url == url


@pytest.mark.server
def test_a_lock_over_a_subclass(server: RedisServer) -> None:
    with Shop(port=server.port) as shop, lockline.connect(shop) as client, client.lock("x") as lease:
        assert lease.valid

    async def story() -> None:
        async with (
            LoopShop(port=server.port) as shop,
            lockline.aio.connect(shop) as client,
            client.lock("x") as lease,
        ):
            assert lease.valid

    asyncio.run(story())


def test_a_client_that_only_pretends_is_refused_because_we_would_reach_another_server() -> None:
    pretender = type("FakeRedis", (redis.Redis,), {"__module__": "fakeredis._connection"})
    heir = type("Mine", (pretender,), {})
    for kind in (pretender, heir):
        with pytest.raises(ConfigError, match="no server is behind it"):
            lockline.connect(kind())


def test_to_refuse_an_object_no_library_is_imported() -> None:
    code = """
import sys, lockline
try:
    lockline.connect(object())
except lockline.ConfigError:
    print(sorted({"redis", "kazoo"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
