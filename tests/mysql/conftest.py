"""A MariaDB of the tests' own, with the tables of Lockline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from lockline.backends.mysql import tables
from tests.servers.mysql import MariadbServer


class Database:
    """One server, its tables, and a way to ask it behind Lockline's back."""

    def __init__(self, factory: pytest.TempPathFactory, *options: str) -> None:
        # Without a flush for each commit, unless a story is about that.
        self.server = MariadbServer(
            factory.mktemp("mysql") / "home", "--innodb-flush-log-at-trx-commit=0", *options
        ).start()
        self.url = self.server.url
        try:
            tables(self.url).make()
        except BaseException:
            self.close()
            raise

    def connect(self, **how: Any) -> Any:
        """A session of its own."""
        told = {"user": "root", "database": "lockline", "autocommit": True, "ssl_disabled": True, **how}
        return pymysql.connect(host="127.0.0.1", port=self.server.port, **told)

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement, in a session of its own."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def add_user(self, name: str, rights: str, password: str = "") -> str:
        """The URL of somebody who may do this, and nothing else."""
        for host in ("localhost", "127.0.0.1"):
            self.ask(f"CREATE USER {name}@{host} IDENTIFIED BY '{password}'")
            self.ask(rights.format(database="lockline", user=f"{name}@{host}"))
        return self.url.replace("root@", f"{name}:{password}@" if password else f"{name}@")

    def drop_user(self, name: str) -> None:
        for host in ("localhost", "127.0.0.1"):
            self.ask(f"DROP USER {name}@{host}")

    def close(self) -> None:
        self.server.remove()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """For stories that do nothing to the server itself."""
    database = Database(tmp_path_factory)
    yield database
    database.close()


@pytest.fixture
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """For stories that kill, fill or stop it."""
    database = Database(tmp_path_factory, "--innodb-flush-log-at-trx-commit=1")
    yield database
    database.close()
