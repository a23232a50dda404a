"""The primary dies under load, and everybody goes on with the same client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import redis
from redis.crc import key_slot

import lockline
from lockline import BackendUnavailable, LeaseLost
from lockline.backends.redis.commands import key_of
from lockline.backends.redis.scripts import NO_CHANNEL
from lockline.runtime import clock
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisCluster, RedisServer, SentinelTrio, a_redis, started
from tests.tier import sample

from .conftest import LONG, believe_dead_after
from .crowd import Crowd

pytestmark = [pytest.mark.server, pytest.mark.slow]

Connect = Callable[..., lockline.Client]
TTL = 10.0
PROCESSES = sample(2, 16)
"""One of each flavour, beside the clients of the test itself."""


def owner_of(cluster: RedisCluster, name: str) -> RedisServer:
    """The primary that has the slot of this name."""
    for node in cluster.primaries():
        try:
            node.command("HKEYS", key_of(name))
        except redis.ResponseError:
            continue  # MOVED
        return node
    raise AssertionError(f"nobody has the slot of {name!r}")


def fail_over(cluster: RedisCluster, replicas: list[RedisServer]) -> None:
    """As an operator does it: ask each replica to take over, again if a slow machine let that run out."""

    def agreed() -> bool:
        return len({node.command("CLUSTER INFO")["cluster_current_epoch"] for node in cluster.nodes}) == 1

    def done(replica: RedisServer) -> bool:
        if replica.command("ROLE")[0] == "master":
            return True
        replica.command("CLUSTER", "FAILOVER")
        until = time.monotonic() + 6
        while time.monotonic() < until and replica.command("ROLE")[0] != "master":
            time.sleep(0.02)
        return bool(replica.command("ROLE")[0] == "master")

    for replica in replicas:
        # Who has not heard of the last election begins one of the same number, and gets no votes.
        wait_for(agreed, 60, "one epoch everywhere")
        wait_for(partial(done, replica), 180, "the failover")


def one_name_per_shard() -> list[str]:
    """Names whose lines live on three different shards."""
    found: dict[int, str] = {}
    for letter in "abcdefghijklmnopqrstuvwxyz":
        found.setdefault(key_slot(key_of(letter)) * 3 // 16384, letter)
    return list(found.values())


def judge(crowd: Crowd, died_at: float) -> None:
    """Two holders at once only where the docs say so: the earlier of them was last confirmed before the death."""
    crowd.check_tokens()
    crowd.check_resource()
    for earlier, later in crowd.overlaps():
        assert earlier.until <= died_at + TTL, (earlier, later)


def test_sentinel_many_processes_survive_the_death_of_the_primary(tmp_path: Path, connect: Connect) -> None:
    """So does one that only lists: an exporter, an operator's page. Nothing else of it would ever ask the sentinels again."""
    with (
        started(SentinelTrio, "sentinel") as trio,
        Crowd(trio.url, tmp_path, PROCESSES, ["a", "b", "c"], TTL) as crowd,
    ):
        believe_dead_after(LONG, trio)
        holder, looker = connect(trio.url), connect(trio.url)
        lease = holder.lock("x", ttl=300).acquire()
        assert looker.list("x") == ["x"]
        # So that whichever is made primary has it.
        with trio.primary.client() as primary:
            assert primary.wait(2, 60_000) == 2
        crowd.wait_for_grants(3)
        believe_dead_after(0.5, trio)
        trio.primary.kill()
        died_at = time.monotonic()
        wait_for(lambda: trio.who_is_primary() is not None, 60, "a new primary")
        assert looker.list("x") == ["x"], "in the very first call"
        crowd.wait_for_grants(3, since=time.monotonic())
        crowd.stop()
        judge(crowd, died_at)
        lease.release()


def test_cluster_many_processes_survive_the_death_of_a_primary(tmp_path: Path, connect: Connect) -> None:
    """And so does one that only lists."""
    names = one_name_per_shard()
    with started(RedisCluster, "cluster") as cluster, Crowd(cluster.url, tmp_path, PROCESSES, names, TTL) as crowd:
        believe_dead_after(LONG, cluster)
        holder, looker = connect(cluster.url), connect(cluster.url)
        held = sorted(f"held {{{name}}}" for name in names)
        leases = [holder.lock(name, ttl=300).acquire() for name in held]
        assert looker.list("held") == held
        crowd.wait_for_grants(3)
        before = cluster.nodes[0]
        after = cluster.replica_of(before)
        with before.client() as primary:
            assert primary.wait(1, 60_000) == 1
        believe_dead_after(1.0, cluster)
        before.kill()
        died_at = time.monotonic()
        wait_for(lambda: after.command("ROLE")[0] == "master", 60, "a new primary")
        wait_for(lambda: all(cluster._is_ok(node) for node in cluster.nodes[1:]), 60, "the others to agree")
        assert looker.list("held") == held, "in the very first call"
        crowd.wait_for_grants(2, since=time.monotonic())
        crowd.stop()
        judge(crowd, died_at)
        for lease in leases:
            lease.release()


def test_a_lease_that_the_new_primary_does_not_know_is_lost_and_not_made_again(
    own_server: RedisServer, connect: Connect
) -> None:
    """An address that moves to a replica which had not heard of it yet."""
    with a_redis() as promoted, Proxy(own_server.address) as proxy:
        client = connect(f"redis://127.0.0.1:{proxy.port}")
        lease = client.lock("y", ttl=5).acquire()
        proxy.lead_to(promoted.address)
        own_server.kill()
        assert lease.lost.wait(60)
        with pytest.raises(LeaseLost):
            lease.check()
        assert promoted.command("EXISTS", "{ll:y}") == 0
        again = client.lock("y").acquire(timeout=60)
        assert again.token > lease.token, "tokens go on rising"
        again.release()


def test_a_grant_counts_only_when_enough_replicas_have_it(connect: Connect) -> None:
    with a_redis("--repl-diskless-sync-delay", "0") as primary, primary.client() as operator:
        follows = ("--replicaof", "127.0.0.1", str(primary.port))
        with a_redis(*follows) as first, a_redis(*follows) as second:
            operator.set("first", "1", px=1)
            assert operator.wait(2, 60_000) == 2, "each has said once how far it is"
            client = connect(primary.url, wait_replicas=2)
            lease = client.lock("x", ttl=60).acquire()
            for replica in (first, second):
                assert replica.command("EXISTS", "{ll:x}") == 1
            lease.release()
            for replica in (first, second):
                replica.freeze()
            try:
                with pytest.raises(BackendUnavailable, match=r"0 of 2 replicas"):
                    client.lock("y", ttl=3).acquire()
            finally:
                for replica in (first, second):
                    replica.thaw()

            def claims() -> list[str]:
                return [field for field in primary.command("HKEYS", "{ll:y}") if field[0] in "+~"]

            wait_for(lambda: not claims(), 60, "the withdrawal")
            client.lock("y", ttl=60).acquire(timeout=60).release()


def test_cluster_a_planned_failover_disturbs_nobody(cluster: RedisCluster, connect: Connect) -> None:
    """Neither a holder nor a waiter, which listens at the new primary from then on."""
    client, other = connect(cluster.url), connect(cluster.url)
    names = [f"name {{{n}}}" for n in range(12)]
    leases = [client.lock(name, ttl=300).acquire() for name in names]
    got: list[lockline.Lease] = []

    def wait() -> None:
        # Longer than anybody here waits, as the holder's ttl: its turn is not found by an expiry.
        with other.lock(names[0], ttl=300) as mine:
            got.append(mine)

    waiting = threading.Thread(target=wait)
    waiting.start()
    replica = cluster.replica_of(owner_of(cluster, names[0]))
    wait_for(lambda: channel_of_waiter(owner_of(cluster, names[0]), names[0]), 60, "the waiter")
    before = channel_of_waiter(owner_of(cluster, names[0]), names[0])
    fail_over(cluster, [cluster.replica_of(primary) for primary in cluster.primaries()])

    def listens_anew() -> bool:
        # It finds out with its next renewal, which would be due in a minute and more.
        for live in list(other._engine._keeper.books.values()):
            live.due = clock.now()
        return channel_of_waiter(replica, names[0]) not in (None, before)

    wait_for(listens_anew, 120, "the waiter on its new channel")
    for lease in leases:
        assert other.lock(lease.name).try_acquire() is None
        lease.extend(300)
        lease.release()
    waiting.join(60)
    assert got
    assert got[0].token > leases[0].token
    for name, lease in zip(names, leases, strict=True):
        again = other.lock(name).acquire(timeout=60)
        assert again.token > lease.token
        again.release()


def channel_of_waiter(node: RedisServer, name: str) -> str | None:
    """Where the one that waits for this name is notified; None while nobody is there that listens."""
    try:
        waiting = [field for field in node.command("HKEYS", key_of(name)) if field[0] == "~"]
        channels = [str(node.command("HGET", key_of(name), field)).split(" ")[6] for field in waiting]
    except redis.ResponseError:
        return None  # it has not the slot yet
    return channels[0] if channels and channels[0] != NO_CHANNEL else None


def test_cluster_a_slot_that_moves_under_its_lines_disturbs_nobody(cluster: RedisCluster, connect: Connect) -> None:
    """The line moves as one key; who asks the old owner is sent on, while it moves and after."""
    client, other = connect(cluster.url), connect(cluster.url)
    name = one_name_per_shard()[0]
    slot = key_slot(key_of(name))
    source = owner_of(cluster, name)
    sink = next(node for node in cluster.primaries() if node is not source)
    lease = client.lock(name, ttl=60).acquire()
    got: list[lockline.Lease] = []

    def wait() -> None:
        with other.lock(name, ttl=60) as mine:
            got.append(mine)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(lambda: len(client.inspect(name).waiters) == 1, 60, "the waiter")
    sink.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
    source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(sink))
    source.command("MIGRATE", "127.0.0.1", sink.port, key_of(name), 0, 5000)
    assert sink.command("CLUSTER", "COUNTKEYSINSLOT", slot) == 1
    # Between the two: the old owner says ASK.
    lease.extend(60)
    assert len(client.inspect(name).claims) == 2
    for node in (sink, source):
        node.command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(sink))
    lease.release()
    waiting.join(60)
    assert got[0].token > lease.token
    assert client.list() == []
