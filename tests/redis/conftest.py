"""Redis servers for this folder, each started once and only if a test needs it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockline
from tests.contract.parties import Party
from tests.contract.scene import Scene
from tests.contract.worlds import Place
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisCluster, RedisServer, SentinelTrio, a_redis, started

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    with a_redis() as server:
        yield server


@pytest.fixture
def server(shared_redis: RedisServer) -> RedisServer:
    """One server, empty."""
    shared_redis.command("FLUSHALL")
    return shared_redis


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that the test may stop, kill and restart; it keeps its data."""
    with a_redis(keeps_data=True) as server:
        yield server


def believe_dead_after(seconds: float, servers: RedisCluster | SentinelTrio) -> None:
    """How long a node may say nothing: long, unless a failover is the story. A machine that stands still is no reason for one."""
    milliseconds = int(seconds * 1000)
    if isinstance(servers, RedisCluster):
        for node in servers.nodes:
            node.command("CONFIG", "SET", "cluster-node-timeout", milliseconds)
    else:
        for sentinel in servers.sentinels:
            sentinel.command("SENTINEL", "SET", servers.SERVICE, "down-after-milliseconds", milliseconds)


LONG = 6.0
"""For `believe_dead_after`: not much longer, because an election that fails in a cluster is tried again after four times as long."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    """Three shards with a replica each; tests may change who is primary, and kill nobody."""
    with started(RedisCluster, "cluster") as cluster:
        believe_dead_after(LONG, cluster)
        yield cluster


@pytest.fixture(scope="module")
def shards() -> Iterator[RedisCluster]:
    """Three shards without replicas; each serves on when another does not. Tests leave every slot where it was."""
    with started(lambda folder: RedisCluster(folder, 3, 0, "--cluster-require-full-coverage", "no"), "cluster") as it:
        believe_dead_after(LONG, it)
        yield it


@pytest.fixture(scope="module")
def trio() -> Iterator[SentinelTrio]:
    """A primary with two replicas under sentinels; tests leave it as they found it."""
    with started(SentinelTrio, "sentinel") as it:
        believe_dead_after(LONG, it)
        yield it


@contextlib.contextmanager
def silent(server: RedisServer) -> Iterator[None]:
    """It takes what is sent to it and answers when the block is left: after what the story waits for, however long a busy machine takes."""
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@pytest.fixture
def connect() -> Iterator[Callable[..., lockline.Client]]:
    """`lockline.connect`, closed at the end."""
    clients: list[lockline.Client] = []

    def make(target: Any, **options: Any) -> lockline.Client:
        client = lockline.connect(target, **options)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


class Town:
    """One server, reached directly or through a proxy, by parties of one flavour."""

    def __init__(self, server: RedisServer, proxy: Proxy, flavour: str) -> None:
        self.server = server
        self.proxy = proxy
        self.flavour = flavour
        prefix = self.prefix = f"t{next(_numbers)}"
        self.direct = Scene(Place(f"{server.url}?prefix={prefix}"), flavour)
        self.through = Scene(Place(f"redis://127.0.0.1:{proxy.port}?prefix={prefix}"), flavour)

    def key(self, name: str) -> str:
        """The key of a line."""
        return f"{{{self.prefix}:{name}}}"

    def fields(self, name: str) -> dict[str, str]:
        """A line as the server keeps it."""
        return self.server.command("HGETALL", self.key(name))  # type: ignore[no-any-return]

    def near(self, **options: Any) -> Party:
        """Somebody whose line never breaks."""
        return self.direct.party(**options)

    def far(self, **options: Any) -> Party:
        """Somebody behind the proxy."""
        return self.through.party(**options)

    def finish(self) -> None:
        self.proxy.heal()
        # What was swallowed is lost for good: waiting for it would only take time.
        self.proxy.cut()
        self.through.finish()
        self.direct.finish()


@pytest.fixture(params=["sync", "asyncio"])
def flavour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def town(server: RedisServer, flavour: str) -> Iterator[Town]:
    """A server with a proxy before it."""
    with Proxy(server.address) as proxy:
        town = Town(server, proxy, flavour)
        try:
            yield town
        finally:
            town.finish()
