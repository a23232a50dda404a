"""A MariaDB of the tests' own, with the tables of Lockline."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from lockline.backends.mysql import tables
from tests.calm import calm
from tests.servers.mysql import MariadbServer

WAITING = (
    "SELECT t.trx_mysql_thread_id FROM information_schema.innodb_lock_waits w "
    "JOIN information_schema.innodb_trx t ON t.trx_id = w.requesting_trx_id"
)


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
        told = {
            "user": "root",
            "database": "lockline",
            "autocommit": True,
            "ssl_disabled": True,
            "init_command": "SET SESSION TRANSACTION READ WRITE",
            **how,
        }
        return pymysql.connect(host="127.0.0.1", port=self.server.port, **told)

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement, in a session of its own."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def who_waits(self) -> int:
        """A session that waits for a row, as soon as there is one.

        The server takes a new picture of who waits only when nobody has looked at the last one for a tenth of a second: whoever
        asks more often sees the same for ever, and perhaps one who is gone.
        """
        until = calm() + 60
        while True:
            time.sleep(0.15)
            if found := self.ask(WAITING):
                return int(found[0][0])
            assert calm() < until, "nobody waits for a row"

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


_SHARED = pytest.StashKey[Database]()


def shared_database(request: pytest.FixtureRequest) -> Database:
    """The one server of the tests here and in tests/sql, started on first use."""
    stash = request.config.stash
    if _SHARED not in stash:
        stash[_SHARED] = Database(request.getfixturevalue("tmp_path_factory"))
    return stash[_SHARED]


def close_shared(config: pytest.Config) -> None:
    """At the end of all tests."""
    if _SHARED in config.stash:
        config.stash[_SHARED].close()
        del config.stash[_SHARED]


def pytest_sessionfinish(session: pytest.Session) -> None:
    close_shared(session.config)


@pytest.fixture(scope="session")
def shared(request: pytest.FixtureRequest) -> Database:
    """For stories that do nothing to the server itself."""
    return shared_database(request)


@pytest.fixture(scope="session")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """For stories that kill it, or make a replica of it; each leaves it as it was. It flushes its log, and has a binary one."""
    database = Database(
        tmp_path_factory, "--innodb-flush-log-at-trx-commit=1", "--log-bin=log", "--binlog-format=ROW", "--server-id=1"
    )
    yield database
    database.close()
