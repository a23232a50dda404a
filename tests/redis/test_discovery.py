"""Finding the server of a line goes past those who cannot help: busy, frozen, outdated, set up wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import redis
from redis.crc import key_slot

import lockline
import lockline.aio
from lockline import BackendUnavailable
from lockline.backends.redis.backend import RedisBackend
from lockline.backends.redis.commands import key_of
from lockline.backends.redis.connection import Connections
from lockline.backends.redis.target import understand
from lockline.backends.redis.topology import Cluster
from lockline.backends.resp.connection_blocking import BlockingLink
from lockline.backends.resp.errors import NoAnswer
from lockline.backends.resp.target import Address
from lockline.runtime import clock
from lockline.runtime.blocking import BlockingRuntime, run
from tests.servers.process import wait_for
from tests.servers.redis import RedisCluster, RedisServer, SentinelTrio, chosen_program, started, version_of
from tests.tier import sample

from .conftest import LONG, believe_dead_after

pytestmark = [pytest.mark.server, pytest.mark.slow]

Connect = Callable[..., lockline.Client]
TASKS = sample(100, 1000)


@pytest.fixture
def cluster(shards: RedisCluster) -> RedisCluster:
    return shards


def name_on(shard: int) -> str:
    """A name whose line lives on this one of three shards."""
    return next(name for name in map(str, range(1000)) if key_slot(key_of(name)) * 3 // 16384 == shard)


@contextlib.contextmanager
def busy(node: RedisServer) -> Iterator[Callable[[], object]]:
    """A node that is kept busy by a script, until what this gives is called."""
    node.command("CONFIG", "SET", "lua-time-limit", "10")

    def spin() -> None:
        with node.client() as client, contextlib.suppress(redis.ResponseError):
            client.execute_command("EVAL", "while true do end", 0)

    def refuses() -> bool:
        try:
            return not node.command("PING")
        except redis.ResponseError as answer:
            return "BUSY" in str(answer)

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        wait_for(refuses, 60, "a busy node")
        yield lambda: node.command("SCRIPT", "KILL")
    finally:
        with contextlib.suppress(redis.ResponseError):
            node.command("SCRIPT", "KILL")
        thread.join(60)


@pytest.mark.parametrize("knows", [False, True])
def test_cluster_a_busy_node_is_waited_for_and_holds_up_no_other(
    cluster: RedisCluster, connect: Connect, knows: bool
) -> None:
    client = connect(cluster.url)
    if knows:
        client.lock(name_on(0)).acquire().release()
    with busy(cluster.nodes[0]) as end:
        # It is busy until it is told to end: whoever waited for it would wait for ever.
        client.lock(name_on(1)).acquire(timeout=60).release()
        threading.Timer(0.3, end).start()
        client.lock(name_on(0)).acquire(timeout=120).release()


def asked_for_slots(cluster: RedisCluster) -> int:
    """How often any node was asked who owns which slot, since its statistics were reset."""
    stats = [node.command("INFO", "commandstats") for node in cluster.nodes]
    return sum(told["calls"] for each in stats for name, told in each.items() if name.startswith("cmdstat_cluster"))


def test_cluster_a_burst_of_tasks_asks_once_for_all_of_them(cluster: RedisCluster) -> None:
    """Each answer tells of all slots: a thousand of them took a loop longer than a ttl."""

    async def burst() -> None:
        async with lockline.aio.connect(cluster.url) as client:
            backend = client._engine.backend
            assert isinstance(backend, RedisBackend)
            topology = backend.channel.topology
            for _ in range(2):
                leases = await asyncio.gather(*[client.lock(f"burst {n}").acquire(timeout=60) for n in range(TASKS)])
                assert all(lease.valid for lease in leases)
                await asyncio.gather(*[lease.release() for lease in leases])
                # As after a failover: nobody knows where anything is.
                for node in cluster.nodes:
                    topology.doubt(node.address)

    for node in cluster.nodes:
        node.command("CONFIG", "RESETSTAT")
    asyncio.run(burst())
    assert asked_for_slots(cluster) <= 20


def test_cluster_threads_that_begin_together_ask_once_for_all_of_them(cluster: RedisCluster, connect: Connect) -> None:
    client, ready = connect(cluster.url), threading.Barrier(40)
    got: list[lockline.Lease] = []

    def begin(number: int) -> None:
        ready.wait()
        got.append(client.lock(f"begin {number}").acquire(timeout=60))

    for node in cluster.nodes:
        node.command("CONFIG", "RESETSTAT")
    threads = [threading.Thread(target=begin, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(got) == 40
    assert asked_for_slots(cluster) <= 10
    for lease in got:
        lease.release()


def test_cluster_one_whose_time_is_over_takes_no_other_along(cluster: RedisCluster) -> None:
    """Whoever asks for all may have less time than they; then one of the others asks."""
    target = understand(cluster.url, "blocking", {})
    port = Connections(target, partial(BlockingLink, most=4))
    topology = Cluster(target, port, BlockingRuntime())
    for node in cluster.nodes:
        node.freeze()
    found: list[object] = []

    def find(seconds: float) -> None:
        try:
            found.append(run(topology.find(key_of(name_on(0)), clock.now() + seconds)))
        except NoAnswer as problem:
            found.append(problem)

    threads = [threading.Thread(target=find, args=(seconds,)) for seconds in (0.2, 60, 60, 60)]
    try:
        for thread in threads:
            thread.start()
        threads[0].join(60)
    finally:
        for node in cluster.nodes:
            node.thaw()
    for thread in threads:
        thread.join(60)
    assert isinstance(found[0], NoAnswer)
    assert found[1:] == [cluster.nodes[0].address] * 3
    port.close()


def test_cluster_a_node_that_did_not_serve_is_asked_last(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would cost everybody a second, whatever shard they are going to."""
    target = understand(cluster.url, "blocking", {})
    port = Connections(target, partial(BlockingLink, most=4))
    topology = Cluster(target, port, BlockingRuntime())
    frozen = cluster.nodes[0]
    run(topology.primaries(clock.now() + 60))
    asked: list[Address] = []
    ask = topology._ask

    def note(node: Address, until: float) -> Any:
        asked.append(node)
        return ask(node, until)

    monkeypatch.setattr(topology, "_ask", note)

    def is_doubted() -> bool:
        topology.doubt(frozen.address)
        return topology.known(b"x") is None

    frozen.freeze()
    try:
        for _ in range(3):
            wait_for(is_doubted, 60, "an answer that is not fresh any more")
            assert frozen.address in run(topology.primaries(clock.now() + 60))
        assert asked
        assert frozen.address not in asked
    finally:
        frozen.thaw()
        port.close()


def test_cluster_one_node_that_refuses_this_user_hides_no_other(cluster: RedisCluster, connect: Connect) -> None:
    for node in cluster.nodes[1:]:
        node.command("ACL", "SETUSER", "ann", "on", ">p", "~*", "&*", "+@all")
    url = cluster.url.replace("://", "://ann:p@")
    connect(url).lock(name_on(1)).acquire(timeout=60).release()
    with pytest.raises(BackendUnavailable, match="WRONGPASS"):
        connect(url).lock(name_on(0)).acquire(timeout=5)
    for node in cluster.nodes[1:]:
        node.command("ACL", "DELUSER", "ann")


@pytest.mark.skipif(version_of(chosen_program()) < (7, 0), reason="there nodes have no hostnames")
@pytest.mark.parametrize("kind", sample(["unknown-endpoint"], ["hostname", "unknown-endpoint"]))
def test_cluster_nodes_that_do_not_tell_their_hosts_are_found(connect: Connect, kind: str) -> None:
    """A cluster that prefers hostnames, where nobody has one: "?" stands there, also while a slot moves and after."""
    make = partial(RedisCluster, shards=3, replicas=0)
    with started(lambda folder: _prefers(make(folder), kind), "cluster") as cluster:
        client, other = connect(cluster.url), connect(cluster.url)
        names = [name_on(shard) for shard in range(3)]
        leases = [client.lock(name, ttl=60).acquire(timeout=60) for name in names]
        assert other.list() == sorted(names)
        slot, (source, sink, _) = key_slot(key_of(names[0])), cluster.nodes
        sink.command("CLUSTER", "SETSLOT", slot, "IMPORTING", cluster.id_of(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", cluster.id_of(sink))
        source.command("MIGRATE", "127.0.0.1", sink.port, key_of(names[0]), 0, 5000)
        leases[0].extend(60)
        for node in (sink, source):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", cluster.id_of(sink))
        for lease in leases:
            lease.release()
        again = other.lock(names[0]).acquire(timeout=60)
        assert again.token > leases[0].token
        again.release()


def _prefers(cluster: RedisCluster, kind: str) -> RedisCluster:
    for node in cluster.nodes:
        node.argv += ["--cluster-preferred-endpoint-type", kind]
    return cluster


def test_cluster_a_server_that_is_none_says_so_at_once(server: RedisServer, connect: Connect) -> None:
    with pytest.raises(BackendUnavailable, match="cluster support disabled"):
        connect(f"redis+cluster://127.0.0.1:{server.port}").lock("x", ttl=60).acquire()


def test_sentinel_a_service_that_nobody_watches_is_named(trio: SentinelTrio, connect: Connect) -> None:
    client = connect(trio.url.replace(f"/{trio.SERVICE}", "/nosuch"))
    with pytest.raises(BackendUnavailable, match="does not watch 'nosuch'"):
        client.lock("x", ttl=0.5).acquire()


def test_sentinel_one_that_is_out_of_date_keeps_nobody_out(trio: SentinelTrio, connect: Connect) -> None:
    outdated, service = trio.sentinels[0], trio.SERVICE
    # A port where nobody is, and a replica, which takes no writes.
    try:
        for port in (1, trio.replicas[0].port):
            outdated.command("SENTINEL", "REMOVE", service)
            outdated.command("SENTINEL", "MONITOR", service, "127.0.0.1", port, 2)
            connect(trio.url).lock("x").acquire(timeout=60).release()
    finally:
        outdated.command("SENTINEL", "REMOVE", service)
        outdated.command("SENTINEL", "MONITOR", service, "127.0.0.1", trio.primary.port, 2)
        believe_dead_after(LONG, trio)
        wait_for(trio._agreed, 60, "the sentinels' view")
