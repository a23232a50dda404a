"""One Consul server, started once; a prefix of its own for every test."""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import pytest

import lockline
from lockline.backends.consul.backend import ConsulBackend

from ..servers.consul import MEMORY, ConsulCluster
from ..servers.proxy import Proxy

_numbers = itertools.count(1)
Clients = Callable[..., lockline.Client]


@pytest.fixture(scope="session")
def consul() -> Iterator[ConsulCluster]:
    with TemporaryDirectory(prefix="lockline-consul-", dir=MEMORY) as folder:
        cluster = ConsulCluster(Path(folder)).start()
        yield cluster
        cluster.stop()


@pytest.fixture(scope="session")
def spare() -> Iterator[ConsulCluster]:
    """One for tests that kill it or restore it; each leaves it running."""
    with TemporaryDirectory(prefix="lockline-consul-", dir=MEMORY) as folder:
        cluster = ConsulCluster(Path(folder)).start()
        yield cluster
        cluster.stop()


@pytest.fixture
def prefix() -> str:
    """A place that no other test has seen."""
    return f"p{next(_numbers)}"


@pytest.fixture
def url(consul: ConsulCluster, prefix: str) -> str:
    return f"{consul.url}/{prefix}?session_ttl=1"


@pytest.fixture
def proxy(consul: ConsulCluster) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", consul.servers[0].port)) as proxy:
        yield proxy


@pytest.fixture
def through(prefix: str, proxy: Proxy) -> str:
    """The same place, by way of the proxy."""
    return f"consul://127.0.0.1:{proxy.port}/{prefix}?session_ttl=1"


@pytest.fixture
def client_of() -> Iterator[Clients]:
    """Makes clients that are closed after the test."""
    made: list[lockline.Client] = []

    def make(target: str, **options: Any) -> lockline.Client:
        made.append(lockline.connect(target, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


def backend_of(client: lockline.Client) -> ConsulBackend:
    """What is behind a client."""
    backend = client._engine.backend
    assert isinstance(backend, ConsulBackend)
    return backend


def put(server: ConsulCluster, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    """A request of the test's own."""
    return _request("PUT", server, path, body, **headers)


def delete(server: ConsulCluster, path: str, **headers: str) -> int:
    """The same, that something be deleted."""
    return _request("DELETE", server, path, **headers)[0]


def _request(method: str, server: ConsulCluster, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    data = (None if method == "GET" else b"") if body is None else json.dumps(body).encode()
    address = f"http://127.0.0.1:{server.servers[0].port}/v1/{quote(path, safe='/?=&%')}"
    request = urllib.request.Request(address, data, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            text = refused.read().decode()
        return refused.code, text


def keys_under(server: ConsulCluster, prefix: str) -> list[str]:
    """Every key that begins like this."""
    code, found = _request("GET", server, f"kv/{prefix}?keys")
    assert code in (200, 404), found
    return list(found) if code == 200 else []


def entries_under(server: ConsulCluster, prefix: str) -> list[dict[str, Any]]:
    """All that Consul knows of the keys that begin like this."""
    code, found = _request("GET", server, f"kv/{prefix}?recurse")
    assert code == 200, found
    return list(found)
