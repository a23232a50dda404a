"""The stories of the one SQL core, on each database that it serves: PostgreSQL, the same behind PgBouncer, and MariaDB."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lockline.backends import mysql, postgresql
from tests.servers.mysql import MariadbServer
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer
from tests.servers.process import ServerProcess
from tests.servers.proxy import Proxy

STORES = ["postgresql", "pgbouncer", "mysql"]


class Store:
    """One database with the tables of Lockline, started on first use."""

    def __init__(self, kind: str, factory: pytest.TempPathFactory) -> None:
        self.kind = kind
        self._numbers = itertools.count()
        self.pooler: PgBouncer | None = None
        self.server: ServerProcess
        if kind == "mysql":
            mariadb = MariadbServer(factory.mktemp("mysql") / "home", "--innodb-flush-log-at-trx-commit=0").start()
            self.server, self._url, self.port = mariadb, mariadb.url, mariadb.port
            mysql.tables(mariadb.url).make()
        else:
            server = PostgresServer("-c", "fsync=off").start()
            self.server, self._url, self.port = server, server.url, server.port
            postgresql.tables(server.url).make()
        if kind == "pgbouncer":
            self.pooler = PgBouncer(self.port).start()
            self._url, self.port = self.pooler.url, self.pooler.port

    def url(self, **options: object) -> str:
        """A place that no other story has seen."""
        told = {"prefix": f"s{next(self._numbers)}", **options}
        return f"{self._url}?" + "&".join(f"{name}={value}" for name, value in told.items())

    def through(self, proxy: Proxy, **options: object) -> str:
        """The same by way of the proxy."""
        return self.url(**options).replace(f":{self.port}/", f":{proxy.port}/")

    def close(self) -> None:
        if self.pooler is not None:
            self.pooler.remove()
        self.server.remove()  # type: ignore[attr-defined]


@pytest.fixture(scope="session", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """For stories that leave it as it was."""
    store = Store(request.param, tmp_path_factory)
    yield store
    store.close()


@pytest.fixture
def proxy(store: Store) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", store.port)) as proxy:
        yield proxy
