"""Stores that processes share, and the processes that meet there."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from tests.contract.worlds import all_worlds
from tests.servers.redis import a_redis

from ..tier import sample

FORKS: Final = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.kit.crowd", "tests.kit.leading"])
Start = Callable[..., "Started"]
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


ON_REDIS: Final = [_server("redis"), *sample([], ["local"])]
ON_LOCAL: Final = ["local", *sample([], [_server("redis")])]
"""One store for each crowd, and in the full run both: what a store promises is shown on each of them by the contract."""
EVERYWHERE: Final = [*ON_REDIS, *sample([], list(map(_server, CONSENSUS)))]


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


class Started:
    """A program of this folder in a process of its own: forked by one that has imported it already, in milliseconds."""

    def __init__(self, program: str, arguments: tuple[object, ...]) -> None:
        readable, writable = multiprocessing.Pipe(duplex=False)
        self._process = FORKS.Process(target=_run, args=(program, [*map(str, arguments)], writable), daemon=True)
        self._process.start()
        writable.close()
        self.lines = os.fdopen(os.dup(readable.fileno()))
        readable.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def wait(self, seconds: float = 60.0) -> int:
        """Its exit code, once it has ended."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, "it does not end"
        return self._process.exitcode

    def close(self) -> None:
        """Whatever it does, it ends."""
        self._process.kill()
        self.wait()
        self.lines.close()


def _run(program: str, arguments: list[str], output: Connection) -> None:
    os.dup2(output.fileno(), 1)
    output.close()
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.argv = [program, *arguments]
    importlib.import_module(f"tests.kit.{program}").main()


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a program of this folder; what still runs at the end is killed."""
    started: list[Started] = []

    def begin(program: str, *arguments: object) -> Started:
        started.append(Started(program, arguments))
        return started[-1]

    yield begin
    for process in started:
        process.close()


def line_of(process: Started) -> str:
    """The next line that it prints."""
    return process.lines.readline().strip()
