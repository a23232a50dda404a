"""A PostgreSQL of the tests' own, with the tables of Lockline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.servers.pgbouncer import PgBouncer

from .template import CopiedPostgres


class Database:
    """One server, its tables, and a way to ask it behind Lockline's back."""

    def __init__(self, *options: str, lasts: bool = False) -> None:
        """`lasts` says that no test stops the server: all questions are asked in one session."""
        self.server = CopiedPostgres("-c", "fsync=off", *options).start()
        self.url = self.server.url
        self._session = self._connect(self.url) if lasts else None

    @staticmethod
    def _connect(url: str) -> psycopg.Connection:
        return psycopg.connect(url, autocommit=True, prepare_threshold=None)

    def ask(self, statement: str, *values: Any, url: str | None = None) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        if self._session is not None and url is None:
            return self._execute(self._session, statement, values)
        with self._connect(url or self.url) as connection:
            return self._execute(connection, statement, values)

    @staticmethod
    def _execute(connection: psycopg.Connection, statement: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self.server.remove()


@pytest.fixture(scope="session")
def shared() -> Iterator[Database]:
    """For stories that do nothing to the server itself."""
    database = Database(lasts=True)
    yield database
    database.close()


@pytest.fixture(scope="session")
def spare() -> Iterator[Database]:
    """For stories that kill it; each leaves it running."""
    database = Database("-c", "max_connections=200")
    yield database
    database.close()


@pytest.fixture(scope="session")
def pooler(shared: Database) -> Iterator[PgBouncer]:
    """PgBouncer in transaction mode, in front of the shared one."""
    pooler = PgBouncer(shared.server.port).start()
    yield pooler
    pooler.remove()
