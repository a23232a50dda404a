"""The primary dies under load, and everybody goes on with the same client."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from redis.crc import key_slot

import lockline
from lockline import BackendUnavailable, LeaseLost
from lockline.backends.redis.commands import key_of
from tests.servers.process import wait_for
from tests.servers.redis import RedisCluster, SentinelTrio, started

from .crowd import Crowd

pytestmark = [pytest.mark.server, pytest.mark.slow]

TTL = 2.0


def one_name_per_shard() -> list[str]:
    """Names whose lines live on three different shards."""
    found: dict[int, str] = {}
    for letter in "abcdefghijklmnopqrstuvwxyz":
        found.setdefault(key_slot(key_of(letter)) * 3 // 16384, letter)
    return list(found.values())


def judge(crowd: Crowd, died_at: float) -> None:
    """Two holders at once only where the docs say so: a grant from before the death, and one from soon after it."""
    crowd.check_tokens()
    crowd.check_resource()
    for earlier, later in crowd.overlaps():
        assert earlier.began < died_at + 0.5, (earlier, later)
        assert earlier.ended <= died_at + TTL, (earlier, later)


def test_sentinel_sixteen_processes_survive_the_death_of_the_primary(tmp_path: Path) -> None:
    with (
        started(SentinelTrio, "sentinel") as trio,
        Crowd(trio.url, tmp_path, 16, ["a", "b", "c"], TTL) as crowd,
    ):
        crowd.wait_for_grants(3)
        died_at = time.monotonic()
        trio.primary.kill()
        wait_for(lambda: trio.who_is_primary() is not None, 30, "a new primary")
        crowd.wait_for_grants(3, since=time.monotonic())
        crowd.stop()
        judge(crowd, died_at)


def test_cluster_sixteen_processes_survive_the_death_of_a_primary(tmp_path: Path) -> None:
    names = one_name_per_shard()
    with started(RedisCluster, "cluster") as cluster, Crowd(cluster.url, tmp_path, 16, names, TTL) as crowd:
        crowd.wait_for_grants(3)
        died_at = time.monotonic()
        cluster.nodes[0].kill()
        crowd.wait_for_grants(2, since=died_at + 5)
        crowd.stop()
        judge(crowd, died_at)


def test_a_lease_that_the_new_primary_does_not_know_is_lost_and_not_made_again(tmp_path: Path) -> None:
    with started(SentinelTrio, "sentinel") as trio:
        client = lockline.connect(trio.url)
        for replica in trio.replicas:
            # They never hear of what comes now.
            replica.command("REPLICAOF", "127.0.0.1", "1")
        lease = client.lock("y", ttl=5).acquire()
        trio.primary.kill()
        for replica in trio.replicas:
            assert replica.command("EXISTS", "{ll:y}") == 0
        trio.replicas[0].command("REPLICAOF", "NO", "ONE")
        wait_for(lambda: trio.who_is_primary() is not None, 30, "a new primary")
        assert lease.lost.wait(15)
        with pytest.raises(LeaseLost):
            lease.check()
        again = client.lock("y").acquire(timeout=10)
        assert again.token > lease.token, "tokens go on rising"
        again.release()
        client.close()


def test_a_grant_counts_only_when_enough_replicas_have_it() -> None:
    with started(SentinelTrio, "sentinel") as trio:
        client = lockline.connect(trio.url, wait_replicas=2)
        lease = client.lock("x").acquire()
        for replica in trio.replicas:
            assert replica.command("EXISTS", "{ll:x}") == 1
        lease.release()
        for replica in trio.replicas:
            replica.freeze()
        with pytest.raises(BackendUnavailable, match=r"0 of 2 replicas"):
            client.lock("y", ttl=3).acquire()
        for replica in trio.replicas:
            replica.thaw()
        wait_for(lambda: not lockline_line(trio, "y"), 5, "the withdrawal")
        client.lock("y").acquire(timeout=10).release()
        client.close()


def lockline_line(trio: SentinelTrio, name: str) -> list[str]:
    """The claims on a line, straight from the primary."""
    return [field for field in trio.primary.command("HKEYS", f"{{ll:{name}}}") if field[0] in "+~"]


def test_cluster_a_planned_failover_disturbs_nobody() -> None:
    with started(RedisCluster, "cluster") as cluster:
        client, other = lockline.connect(cluster.url), lockline.connect(cluster.url)
        names = [f"name {{{n}}}" for n in range(12)]
        leases = [client.lock(name).acquire() for name in names]
        for primary in cluster.primaries():
            cluster.replica_of(primary).command("CLUSTER", "FAILOVER")
        wait_for(lambda: set(cluster.primaries()) == set(cluster.nodes[3:]), 20, "the new primaries")
        for lease in leases:
            assert other.lock(lease.name).try_acquire() is None
            lease.extend(5)
            lease.release()
        for name, lease in zip(names, leases, strict=True):
            again = other.lock(name).acquire(timeout=5)
            assert again.token > lease.token
            again.release()
        client.close()
        other.close()


def test_cluster_a_slot_that_moves_under_its_lines_disturbs_nobody() -> None:
    """The line moves as one key; who asks the old owner is sent on, while it moves and after."""
    with started(RedisCluster, "cluster") as cluster:
        client, other = lockline.connect(cluster.url), lockline.connect(cluster.url)
        name = one_name_per_shard()[0]
        slot = key_slot(key_of(name))
        source = cluster.nodes[slot * 3 // 16384]
        sink = next(node for node in cluster.primaries() if node is not source)
        lease = client.lock(name).acquire()
        got: list[lockline.Lease] = []

        def wait() -> None:
            with other.lock(name) as mine:
                got.append(mine)

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_for(lambda: len(client.inspect(name).waiters) == 1, 10, "the waiter")
        sink.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(sink))
        source.command("MIGRATE", "127.0.0.1", sink.port, key_of(name), 0, 5000)
        assert sink.command("CLUSTER", "COUNTKEYSINSLOT", slot) == 1
        # Between the two: the old owner says ASK.
        lease.extend(20)
        assert len(client.inspect(name).claims) == 2
        for node in (sink, source):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(sink))
        lease.release()
        waiting.join(10)
        assert got[0].token > lease.token
        assert client.list() == []
        client.close()
        other.close()
