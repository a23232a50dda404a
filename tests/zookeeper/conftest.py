"""A ZooKeeper of one and an ensemble of three, each started once; a chroot of its own for every test."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, SessionExpiredError

import lockline
from lockline.runtime.clock import now

from ..servers.process import missing
from ..servers.proxy import Proxy
from ..servers.zookeeper import Ensemble, ZooKeeper
from .network import Network, NoNetwork

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper")).start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def links() -> Iterator[Network | NoNetwork]:
    """Four namespaces, of which the first three are for the ensemble; or why there are none."""
    try:
        network = Network(4)
    except NoNetwork as reason:
        yield reason
        return
    yield network
    network.close()


@pytest.fixture
def network(links: Network | NoNetwork) -> Network:
    """The links of the ensemble, for tests that cut them."""
    if isinstance(links, NoNetwork):
        missing(str(links))
    assert isinstance(links, Network)
    return links


@pytest.fixture(scope="session")
def ensemble(tmp_path_factory: pytest.TempPathFactory, links: Network | NoNetwork) -> Iterator[Ensemble]:
    """Each server in a namespace of its own, where there are any. A test leaves all three well."""
    folder = tmp_path_factory.mktemp("ensemble")
    if isinstance(links, Network):
        hosts, before = tuple(links.addresses[:3]), tuple(links.inside(member) for member in range(3))
        ensemble = Ensemble(folder, hosts=hosts, before=before)
    else:
        ensemble = Ensemble(folder)
    ensemble.start()
    yield ensemble
    ensemble.stop()


@pytest.fixture
def url(server: ZooKeeper) -> str:
    """A place that no other test has seen."""
    return f"{server.url}/t{next(_numbers)}"


@pytest.fixture
def client_of() -> Iterator[Callable[..., lockline.Client]]:
    """Makes clients that are closed after the test."""
    made: list[lockline.Client] = []

    def make(target: Any, **options: Any) -> lockline.Client:
        made.append(lockline.connect(target, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture
def kazoo(server: ZooKeeper) -> Iterator[KazooClient]:
    """A plain client, to look behind the scenes."""
    client = KazooClient(hosts=f"127.0.0.1:{server.port}")
    client.start(timeout=60)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def proxy(server: ZooKeeper) -> Iterator[Proxy]:
    """The way to the server, with a hand on the wire."""
    proxy = Proxy(("127.0.0.1", server.port))
    yield proxy
    proxy.close()


def chroot(url: str) -> str:
    """The folder of Lockline's nodes at this place."""
    return "/" + url.rpartition("/")[2] + "/lockline"


class Trust:
    """Looks at a lease all the time, in a thread of its own, until it is no longer good."""

    def __init__(self, lease: lockline.Lease) -> None:
        self._lease = lease
        self._last = now()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while True:
            # The moment before the look: the lease was good then, whatever happens to us in between.
            moment = now()
            if not self._lease.valid:
                return
            self._last = moment
            time.sleep(0.002)

    def last(self) -> float:
        """The last moment at which it was good."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self._last


def end_session(kazoo: KazooClient, client: lockline.Client) -> None:
    """Have the ensemble end this client's session, as if its time had run out: another connection takes it and closes it."""
    identity = client._engine.backend._channel.client.client_id  # type: ignore[attr-defined]
    hosts = ",".join(f"{host}:{port}" for host, port in kazoo.hosts)
    while not _closed_by_another(kazoo, hosts, identity):
        pass


def _closed_by_another(kazoo: KazooClient, hosts: str, identity: Any) -> bool:
    """Whether the session ended; not if its client connected again between the two requests of the other connection."""
    probe = f"/probe-{next(_numbers)}"
    thief = KazooClient(hosts=hosts, client_id=identity)
    thief.start(timeout=60)
    try:
        thief.create(probe, ephemeral=True)
    except (ConnectionLoss, SessionExpiredError):
        return False
    finally:
        thief.stop()
        thief.close()
    return kazoo.exists(probe) is None
