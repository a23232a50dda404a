"""A PostgreSQL of the tests' own, with the tables of Lockline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from lockline.backends.postgresql import tables
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer


class Database:
    """One server, its tables, and a way to ask it behind Lockline's back."""

    def __init__(self, *options: str) -> None:
        self.server = PostgresServer("-c", "fsync=off", *options).start()
        self.url = self.server.url
        tables(self.url).make()

    def ask(self, statement: str, *values: Any, url: str | None = None) -> list[tuple[Any, ...]]:
        """The rows of a statement, in a session of its own."""
        with psycopg.connect(url or self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self.server.remove()


@pytest.fixture(scope="session")
def shared() -> Iterator[Database]:
    """For stories that do nothing to the server itself."""
    database = Database()
    yield database
    database.close()


@pytest.fixture
def database() -> Iterator[Database]:
    """For stories that kill, fill or stop it."""
    database = Database()
    yield database
    database.close()


@pytest.fixture(scope="session")
def pooler(shared: Database) -> Iterator[PgBouncer]:
    """PgBouncer in transaction mode, in front of the shared one."""
    pooler = PgBouncer(shared.server.port).start()
    yield pooler
    pooler.remove()
