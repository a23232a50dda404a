"""What one line or one server does costs its own leases, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from redis.crc import key_slot

import lockline
from lockline.backends.redis.commands import key_of
from tests.redis.renewed import TTL, renewal_of, run_out, wait_for_renewal
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisCluster, RedisServer, a_redis

from .conftest import Town

pytestmark = pytest.mark.server

Connect = Callable[..., lockline.Client]


@pytest.mark.parametrize("spoil", [("SET", "theirs"), ("HSET", "a", "1")])
def test_a_foreign_value_in_the_place_of_one_line_costs_that_lease_alone(town: Town, spoil: tuple[str, ...]) -> None:
    alice = town.near()
    leases = [alice.lock(f"x{n}", ttl=TTL).acquire() for n in range(3)]
    others = renewal_of(*leases[1:])
    town.server.command("DEL", town.key("x0"))
    town.server.command(spoil[0], town.key("x0"), *spoil[1:])
    wait_for(lambda: not leases[0].valid, 60, "the loss of the lease")
    with pytest.raises(lockline.LeaseLost) as lost:
        leases[0].check()
    assert lost.value.reason != "expired", "who was told that it is gone need not wait for its ttl"
    wait_for(others, 60, "the renewal of the others")
    for lease in leases[1:]:
        lease.release()


def test_a_line_that_makes_no_sense_costs_that_lease_alone(town: Town) -> None:
    """The others are renewed; the one that cannot be read is not, and its time runs out."""
    alice = town.near()
    leases = [alice.lock(f"x{n}", ttl=TTL).acquire() for n in range(3)]
    (record,) = [field for field in town.server.command("HKEYS", town.key("x1")) if field[0] == "+"]
    town.server.command("HSET", town.key("x1"), record, "nonsense")
    confirmed, others = renewal_of(leases[1]), renewal_of(leases[0], leases[2])
    wait_for(others, 120, "the renewal of the others")
    assert not confirmed()
    run_out(leases[1])
    wait_for(lambda: not leases[1].valid, 60, "the loss of the lease")
    assert leases[0].valid
    assert leases[2].valid
    leases[0].release()
    leases[2].release()


def test_a_server_without_memory_still_renews_and_releases(connect: Connect) -> None:
    with a_redis() as server:
        client, other = connect(server.url), connect(server.url)
        leases = [client.lock(f"x{n}", ttl=TTL).acquire() for n in range(2)]
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(lockline.BackendUnavailable, match="OOM"):
            client.lock("more").acquire()
        wait_for_renewal(*leases)
        assert len(other.inspect("x0").holders) == 1
        assert other.list() == ["x0", "x1"]
        for lease in leases:
            lease.release()
        server.command("CONFIG", "SET", "maxmemory", "0")


def test_a_server_that_takes_no_more_connections_still_renews(connect: Connect) -> None:
    """A holder has one already, even if its keeper has none of its own yet."""
    with a_redis() as server, server.client() as operator:
        client = connect(server.url)
        leases = [client.lock(f"x{n}", ttl=TTL).acquire() for n in range(3)]
        operator.config_set("maxclients", operator.info("clients")["connected_clients"])
        with pytest.raises(redis.ConnectionError, match="max number of clients"):
            server.command("PING")
        wait_for_renewal(*leases)
        for lease in leases:
            lease.release()


@pytest.fixture
def cluster(shards: RedisCluster) -> RedisCluster:
    return shards


@pytest.mark.parametrize("first", [0, 1])
def test_a_frozen_shard_costs_its_own_leases_alone(cluster: RedisCluster, connect: Connect, first: int) -> None:
    """Those of the other shards are renewed while it is frozen; its own is not, and runs out."""
    client = connect(cluster.url)
    names = sorted((on_shard(n) for n in range(3)), key=lambda name: shard_of(name) != first)
    leases = {name: client.lock(name, ttl=TTL).acquire(timeout=60) for name in names}
    (frozen,) = [lease for name, lease in leases.items() if not shard_of(name)]
    cluster.nodes[0].freeze()
    try:
        confirmed, others = renewal_of(frozen), renewal_of(*(lease for lease in leases.values() if lease is not frozen))
        wait_for(others, 120, "the renewal of the others")
        assert not confirmed()
        run_out(frozen)
        wait_for(lambda: not frozen.valid, 60, "the end of a lease")
        assert {shard_of(name): lease.valid for name, lease in leases.items()} == {0: False, 1: True, 2: True}
        for name in names:
            if shard_of(name):
                leases[name].release()
    finally:
        cluster.nodes[0].thaw()


def test_leases_in_a_slot_that_is_half_moved_live_on(cluster: RedisCluster, connect: Connect) -> None:
    client = connect(cluster.url)
    here, there = two_in_a_slot()
    slot = key_slot(key_of(here))
    leases = [client.lock(name, ttl=TTL).acquire() for name in (here, there)]
    source, target = cluster.nodes[shard_of(here)], cluster.nodes[(shard_of(here) + 1) % 3]
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
    source.command("MIGRATE", "127.0.0.1", target.port, key_of(there), 0, 5000)
    wait_for_renewal(*leases)
    for lease in leases:
        lease.release()
    for node in (source, target):
        node.command("CLUSTER", "SETSLOT", slot, "STABLE")


def shard_of(name: str) -> int:
    return key_slot(key_of(name)) * 3 // 16384


def on_shard(shard: int) -> str:
    return next(name for n in range(1000) if shard_of(name := f"n{n}") == shard)


def two_in_a_slot() -> tuple[str, str]:
    seen: dict[int, str] = {}
    for n in range(100000):
        other = seen.setdefault(key_slot(key_of(f"n{n}")), f"n{n}")
        if other != f"n{n}":
            return other, f"n{n}"
    raise AssertionError("no two names in one slot")


def test_the_first_renewal_on_a_far_server_has_time_for_its_login(server: RedisServer) -> None:
    """Takes some 9 s: the login of the renewals' own connection has to last for more than a third of the ttl."""
    with (
        lockline.connect(server.url) as near,
        near.lock("near", ttl=TTL) as warm,
        Proxy(server.address) as proxy,
        lockline.connect(f"redis://127.0.0.1:{proxy.port}?timeout=5") as client,
    ):
        wait_for_renewal(warm)  # the server knows the script
        client.lock("far").acquire().release()
        proxy.delay(0.8)
        lease = client.lock("far", ttl=9).acquire(timeout=60)
        renewed = renewal_of(lease)
        wait_for(lambda: renewed() or not lease.valid, 60, "a renewal")
        assert lease.valid
        proxy.heal()
        lease.release()
