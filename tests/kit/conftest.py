"""Stores that processes share, and the processes that meet there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers.redis import a_redis

ROOT = Path(__file__).parents[2]
Start = Callable[..., subprocess.Popen[str]]


class Store(NamedTuple):
    """A store that processes share, and what restarts it where there is a server."""

    url: str
    restart: Callable[[], None]


@pytest.fixture(params=["local", pytest.param("redis", marks=pytest.mark.server)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "local":
        yield Store(f"local://{tmp_path}/locks.db", lambda: None)
        return
    with a_redis(keeps_data=True) as server:

        def restart() -> None:
            server.kill()
            server.start()

        yield Store(server.url, restart)


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
