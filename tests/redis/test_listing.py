"""The names that are in use are found in few trips, however many are idle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import lockline
from lockline.backends.redis.inspection import Inspection
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisCluster, RedisServer
from tests.tier import sample

pytestmark = pytest.mark.server

Connect = Callable[..., lockline.Client]


def idle_lines(server: RedisServer, number: int) -> None:
    with server.client() as client:
        pipe = client.pipeline(transaction=False)
        for n in range(number):
            pipe.hset(f"{{ll:idle-{n}}}", "last", "1")
        pipe.execute()


def test_thousands_of_idle_names_cost_a_few_trips(server: RedisServer, connect: Connect) -> None:
    idle_lines(server, sample(5_000, 12_000))
    near = connect(server.url)
    leases = [near.lock(f"used-{n}").acquire() for n in range(30)]
    with Proxy(server.address) as proxy:
        far = connect(f"redis://127.0.0.1:{proxy.port}")
        far.list()
        before = proxy.requests
        assert far.list("used") == sorted(f"used-{n}" for n in range(30))
        assert proxy.requests - before < 100, "not one trip for each name"
        assert len(far.list()) == 30
    for lease in leases:
        lease.release()


def test_a_list_after_the_scripts_were_forgotten_is_complete_and_asks_for_one_name_by_itself(
    server: RedisServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(server.url)
    leases = [client.lock(f"x{n}").acquire() for n in range(20)]
    server.command("SCRIPT", "FLUSH")
    by_itself: list[bytes] = []
    is_used = Inspection._is_used

    async def noted(inspection: Inspection, key: bytes, until: float) -> bool:
        by_itself.append(key)
        return await is_used(inspection, key, until)

    monkeypatch.setattr(Inspection, "_is_used", noted)
    assert len(client.list()) == 20
    assert len(by_itself) == 1, "and that loaded the script for the others"
    for lease in leases:
        lease.release()
    assert client.list() == []


@pytest.mark.slow
def test_names_on_every_shard_are_listed(shards: RedisCluster, connect: Connect) -> None:
    client = connect(shards.url)
    leases = [client.lock(f"x{n}").acquire() for n in range(60)]
    assert client.list() == sorted(f"x{n}" for n in range(60))
    assert len(leases) == 60
    client.close()
    assert connect(shards.url).list() == []
