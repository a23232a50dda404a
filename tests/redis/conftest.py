"""Redis servers for this folder, each started once and only if a test needs it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockline
from tests.servers.redis import RedisServer, a_redis

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
