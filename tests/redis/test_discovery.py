"""Finding the server of a line goes past those who cannot help: busy, frozen, outdated, set up wrongly."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import redis
from redis.crc import key_slot

import lockline
from lockline import BackendUnavailable
from lockline.backends.redis.commands import key_of
from lockline.backends.redis.connection import Connections
from lockline.backends.redis.target import understand
from lockline.backends.redis.topology import Cluster
from lockline.backends.resp.connection_blocking import BlockingLink
from lockline.runtime import clock
from lockline.runtime.blocking import run
from tests.calm import calm
from tests.servers.process import wait_for
from tests.servers.redis import RedisCluster, RedisServer, SentinelTrio, started

pytestmark = [pytest.mark.server, pytest.mark.slow]

Connect = Callable[..., lockline.Client]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with started(lambda folder: RedisCluster(folder, 3, 0, "--cluster-require-full-coverage", "no"), "cluster") as it:
        yield it


@pytest.fixture(scope="module")
def trio() -> Iterator[SentinelTrio]:
    with started(SentinelTrio, "sentinel") as it:
        yield it


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
        wait_for(refuses, 5, "a busy node")
        yield lambda: node.command("SCRIPT", "KILL")
    finally:
        with contextlib.suppress(redis.ResponseError):
            node.command("SCRIPT", "KILL")
        thread.join(5)


@pytest.mark.parametrize("knows", [False, True])
def test_cluster_a_busy_node_is_waited_for_and_holds_up_no_other(
    cluster: RedisCluster, connect: Connect, knows: bool
) -> None:
    client = connect(cluster.url)
    if knows:
        client.lock(name_on(0)).acquire().release()
    with busy(cluster.nodes[0]) as end:
        began = calm()
        client.lock(name_on(1)).acquire(timeout=20).release()
        assert calm() - began < 1
        threading.Timer(0.3, end).start()
        client.lock(name_on(0)).acquire(timeout=5).release()


def test_cluster_a_node_that_did_not_serve_is_asked_last(cluster: RedisCluster) -> None:
    """It would cost everybody a second, whatever shard they are going to."""
    target = understand(cluster.url, "blocking", {})
    port = Connections(target, partial(BlockingLink, most=4))
    topology = Cluster(target, port)
    frozen = cluster.nodes[0]
    run(topology.primaries(clock.now() + 5))
    frozen.freeze()
    try:
        for _ in range(3):
            topology.doubt(frozen.address)
            began = calm()
            assert frozen.address in run(topology.primaries(clock.now() + 5))
            assert calm() - began < 0.5
    finally:
        frozen.thaw()
        port.close()


def test_cluster_one_node_that_refuses_this_user_hides_no_other(cluster: RedisCluster, connect: Connect) -> None:
    for node in cluster.nodes[1:]:
        node.command("ACL", "SETUSER", "ann", "on", ">p", "~*", "&*", "+@all")
    url = cluster.url.replace("://", "://ann:p@")
    connect(url).lock(name_on(1)).acquire(timeout=5).release()
    with pytest.raises(BackendUnavailable, match="WRONGPASS"):
        connect(url).lock(name_on(0)).acquire(timeout=5)


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
    for port in (1, trio.replicas[0].port):
        outdated.command("SENTINEL", "REMOVE", service)
        outdated.command("SENTINEL", "MONITOR", service, "127.0.0.1", port, 2)
        connect(trio.url).lock("x").acquire(timeout=5).release()
