"""The stores behind the fences, each started on first use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cli.conftest import BACKENDS, COMMANDS
from ..cli.forked import Forker
from ..servers.mysql import MysqlServer
from ..servers.postgres import PostgresServer
from ..servers.process import ServerProcess, free_port, listens
from ..servers.redis import RedisServer

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """Makes processes that have imported what they need."""
    forker = Forker(*COMMANDS, *BACKENDS, "tests.fence.program", "tests.fence.webapp")
    yield forker
    forker.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer("-c", "synchronous_commit=on")
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture(scope="session")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MysqlServer]:
    server = MysqlServer(tmp_path_factory.mktemp("mysql") / "home")
    try:
        yield server.start()
    finally:
        server.remove()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture(scope="session")
def s3_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    server = ServerProcess(
        [sys.executable, str(HERE / "s3server.py"), str(port)], tmp_path_factory.mktemp("s3"), lambda: listens(port)
    )
    try:
        server.start()
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()
