"""The stories of the one SQL core, on each database that it serves: PostgreSQL, the same behind PgBouncer, and MariaDB."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.mysql.conftest import close_shared, shared_database
from tests.postgresql.template import CopiedPostgres
from tests.servers.mysql import MariadbServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.process import ServerProcess
from tests.servers.proxy import Proxy
from tests.tier import sample

STORES = ["postgresql", "pgbouncer", "mysql"]
SERVERS = sample(["postgresql", "mysql"], STORES)
"""For stories that take long and have nothing to do with what a pooler does."""


class Store:
    """One database with the tables of Lockline."""

    def __init__(self, kind: str, server: PostgresServer | MariadbServer) -> None:
        self.kind = kind
        self._numbers = itertools.count()
        self.pooler: PgBouncer | None = None
        self.server: ServerProcess = server
        self._url, self.port = server.url, server.port
        if kind == "pgbouncer":
            self.pooler = PgBouncer(self.port).start()
            self._url, self.port = self.pooler.url, self.pooler.port

    def url(self, **options: object) -> str:
        """A place that no other story has seen."""
        told = {"prefix": f"{self.kind}{next(self._numbers)}", **options}
        return f"{self._url}?" + "&".join(f"{name}={value}" for name, value in told.items())

    def through(self, proxy: Proxy, **options: object) -> str:
        """The same by way of the proxy."""
        return self.url(**options).replace(f":{self.port}/", f":{proxy.port}/")

    def close(self) -> None:
        if self.pooler is not None:
            self.pooler.remove()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """The server of two stores: PostgreSQL, and the same behind PgBouncer."""
    server = CopiedPostgres("-c", "fsync=off").start()
    yield server
    server.remove()


@pytest.fixture(scope="session", params=STORES)
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """For stories that leave it as it was."""
    mysql = request.param == "mysql"
    store = Store(request.param, shared_database(request).server if mysql else request.getfixturevalue("postgres"))
    yield store
    store.close()


def pytest_sessionfinish(session: pytest.Session) -> None:
    close_shared(session.config)


@pytest.fixture
def proxy(store: Store) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", store.port)) as proxy:
        yield proxy
