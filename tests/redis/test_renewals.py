"""What one line or one server does costs its own leases, and nobody else's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from redis.crc import key_slot

import lockline
from lockline.backends.redis.commands import key_of
from lockline.backends.redis.scripts import NO_CHANNEL
from tests.calm import calm
from tests.servers.process import wait_for
from tests.servers.redis import RedisCluster, RedisServer, a_redis, started

from .conftest import Town

pytestmark = pytest.mark.server

Connect = Callable[..., lockline.Client]


@pytest.mark.parametrize("spoil", [("SET", "theirs"), ("HSET", "a", "1")])
def test_a_foreign_value_in_the_place_of_one_line_costs_that_lease_alone(town: Town, spoil: tuple[str, ...]) -> None:
    alice = town.near()
    leases = [alice.lock(f"x{n}", ttl=2).acquire() for n in range(3)]
    town.server.command("DEL", town.key("x0"))
    town.server.command(spoil[0], town.key("x0"), *spoil[1:])
    assert leases[0].lost.wait(1.8), "who was told that it is gone need not wait for its ttl"
    time.sleep(1.6)
    for lease in leases[1:]:
        lease.release()


def test_a_line_that_makes_no_sense_costs_that_lease_alone(town: Town) -> None:
    alice = town.near()
    leases = [alice.lock(f"x{n}", ttl=1.8).acquire() for n in range(3)]
    (record,) = [field for field in town.server.command("HKEYS", town.key("x1")) if field[0] == "+"]
    town.server.command("HSET", town.key("x1"), record, "nonsense")
    time.sleep(2)
    assert [lease.valid for lease in leases] == [True, False, True]
    leases[0].release()
    leases[2].release()


def test_a_server_without_memory_still_renews_and_releases(connect: Connect) -> None:
    with a_redis() as server:
        client, other = connect(server.url), connect(server.url)
        leases = [client.lock(f"x{n}", ttl=1.8).acquire() for n in range(2)]
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(lockline.BackendUnavailable, match="OOM"):
            client.lock("more").acquire()
        time.sleep(2)
        assert len(other.inspect("x0").holders) == 1
        assert other.list() == ["x0", "x1"]
        for lease in leases:
            lease.release()
        server.command("CONFIG", "SET", "maxmemory", "0")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """Three shards without replicas; each serves on when another does not."""
    with started(
        lambda folder: RedisCluster(folder, 3, 0, "--cluster-require-full-coverage", "no"), "cluster"
    ) as cluster:
        yield cluster


@pytest.mark.parametrize("first", [0, 1])
def test_a_frozen_shard_costs_its_own_leases_alone(cluster: RedisCluster, connect: Connect, first: int) -> None:
    client = connect(cluster.url)
    names = sorted((on_shard(n) for n in range(3)), key=lambda name: shard_of(name) != first)
    leases = {name: client.lock(name, ttl=2.5).acquire() for name in names}
    cluster.nodes[0].freeze()
    try:
        time.sleep(3.5)
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
    leases = [client.lock(name, ttl=1.8).acquire() for name in (here, there)]
    source, target = cluster.nodes[shard_of(here)], cluster.nodes[(shard_of(here) + 1) % 3]
    target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(target))
    source.command("MIGRATE", "127.0.0.1", target.port, key_of(there), 0, 5000)
    time.sleep(2)
    for lease in leases:
        lease.release()
    for node in (source, target):
        node.command("CLUSTER", "SETSLOT", slot, "STABLE")


def test_a_waiter_is_told_of_its_turn_after_a_planned_failover(connect: Connect) -> None:
    with started(RedisCluster, "cluster") as cluster:
        holder, waiter = connect(cluster.url), connect(cluster.url)
        lease = holder.lock("a", ttl=60).acquire()
        got: list[float] = []

        def wait() -> None:
            with waiter.lock("a", ttl=3):
                got.append(calm())

        thread = threading.Thread(target=wait)
        thread.start()
        primary = cluster.nodes[shard_of("a")]
        replica = cluster.replica_of(primary)
        wait_for(lambda: channel_of_waiter(primary), 10, "the waiter")
        before = channel_of_waiter(primary)
        replica.command("CLUSTER", "FAILOVER")
        wait_for(lambda: replica.command("ROLE")[0] == "master", 10, "the failover")
        wait_for(lambda: channel_of_waiter(replica) not in (None, before), 10, "the waiter on its new channel")
        began = calm()
        lease.release()
        thread.join(30)
        assert got[0] - began < 0.5


def channel_of_waiter(node: RedisServer) -> str | None:
    """Where the one that waits for "a" is told; None while nobody is there that listens."""
    waiting = [field for field in node.command("HKEYS", key_of("a")) if field[0] == "~"]
    channels = [str(node.command("HGET", key_of("a"), field)).split(" ")[6] for field in waiting]
    return channels[0] if channels and channels[0] != NO_CHANNEL else None


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
