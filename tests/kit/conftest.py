"""Stores that processes share, and the processes that meet there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.contract.worlds import all_worlds
from tests.servers.redis import a_redis

ROOT = Path(__file__).parents[2]
Start = Callable[..., subprocess.Popen[str]]
CONSENSUS: Final = ("etcd", "consul", "zookeeper")


class Store(NamedTuple):
    """A store that processes share, and what restarts it where there is a server."""

    url: str
    restart: Callable[[], None]


def _server(name: str) -> Any:
    return pytest.param(name, marks=pytest.mark.server)


@pytest.fixture(params=["local", _server("redis")])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    with opened(request.param, tmp_path) as store:
        yield store


@pytest.fixture(
    params=["local", _server("redis"), *(map(_server, CONSENSUS) if os.environ.get("LOCKLINE_FULL") else ())]
)
def every_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Also those of consensus, where there is time for it."""
    with opened(request.param, tmp_path) as store:
        yield store


@contextmanager
def opened(name: str, folder: Path) -> Iterator[Store]:
    """One of these stores, empty."""
    if name == "local":
        yield Store(f"local://{folder}/locks.db", lambda: None)
    elif name == "redis":
        with a_redis(keeps_data=True) as server:

            def restart() -> None:
                server.kill()
                server.start()

            yield Store(server.url, restart)
    else:
        world = all_worlds()[name](folder / "store")
        world.open()
        try:
            yield Store(world.place(), lambda: None)
        finally:
            world.close()


@pytest.fixture
def url(store: Store) -> str:
    return store.url


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program of this folder; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(program: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"tests.kit.{program}", *map(str, arguments)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=20)


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()
