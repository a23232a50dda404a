"""What a client asks of a cluster when something is wrong there: once for all of its tasks, and not without a pause."""

from __future__ import annotations

import time

import pytest
from redis.crc import key_slot

import lockline
from lockline import BackendUnavailable
from lockline.runtime.blocking import run
from lockline.runtime.clock import now
from tests.servers.redis import RedisCluster

from .test_discovery import name_on

FRESH_S = 0.05
pytestmark = pytest.mark.server

TASKS = 750


def count(cluster: RedisCluster, command: str, what: str) -> int:
    """How many calls of a command the nodes have had."""
    return sum(
        node.command("INFO", "commandstats").get(f"cmdstat_{command}", {}).get(what, 0) for node in cluster.nodes
    )


def test_one_of_many_whose_connection_was_cut_asks_where_the_slots_are(cluster: RedisCluster) -> None:
    """A loop that is behind tells each of its tasks of the cut after the one before it has asked."""
    with lockline.connect(cluster.url) as client:
        client.lock("x").acquire().release()
        topology = client._engine.backend.channel.topology  # type: ignore[attr-defined]
        key, before, began = b"{ll:x}", count(cluster, "cluster|slots", "calls"), time.monotonic()
        for _ in range(TASKS):
            topology.doubt(run(topology.find(key, now() + 60)))
        asked, took = count(cluster, "cluster|slots", "calls") - before, time.monotonic() - began
        # When it is not so fresh any more, it is asked for again.
        time.sleep(2 * FRESH_S)
        topology.doubt(topology.known(key))
        assert topology.known(key) is None
        client.lock("x").acquire(timeout=60).release()
    assert asked <= 2 + took / FRESH_S
    assert count(cluster, "cluster|slots", "calls") > before


def test_a_request_that_two_nodes_send_to_each_other_is_followed_with_pauses(shards: RedisCluster) -> None:
    name, (owner, other, _) = name_on(0), shards.nodes
    key = f"{{ll:{name}}}"
    slot = key_slot(key.encode())
    with lockline.connect(shards.url) as client:
        client.lock(name).acquire().release()
        # A node does not give away a slot with keys in it.
        owner.command("DEL", key)
        before = count(shards, "evalsha", "rejected_calls")
        other.command("CLUSTER", "SETSLOT", slot, "NODE", shards.id_of(owner))
        owner.command("CLUSTER", "SETSLOT", slot, "NODE", shards.id_of(other))
        try:
            began = time.monotonic()
            with pytest.raises((BackendUnavailable, lockline.AcquireTimeout)):
                client.lock(name).acquire(timeout=3)
            took = time.monotonic() - began
            sent = count(shards, "evalsha", "rejected_calls") - before
        finally:
            for node in [owner, *shards.nodes]:
                node.command("CLUSTER", "SETSLOT", slot, "NODE", shards.id_of(owner))
        client.lock(name).acquire(timeout=60).release()
    assert 2 <= sent <= 40 + 20 * took
