"""PostgreSQL in the contract suite: directly, and through PgBouncer in transaction mode."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from lockline.backends.postgresql.schema import ddl
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer

from .worlds import World, joins


@joins
class PostgresqlWorld(World):
    """Each test has a prefix of its own."""

    name = "postgresql"
    marks: ClassVar[tuple[pytest.MarkDecorator, ...]] = (pytest.mark.server,)
    wall_clock = True
    exclusion = "server"
    token_survives: ClassVar = frozenset({"release", "expiry", "restart", "failover"})

    def open(self) -> None:
        # Without a flush for each commit: on this machine all servers share one disk.
        self.server = PostgresServer("-c", "fsync=off").start()
        self.url = self.server.url
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            connection.execute(ddl("lockline"))

    def close(self) -> None:
        self.server.remove()

    def place(self) -> str:
        return f"{self.url}?prefix={self.unique()}"

    def debris(self, place: str) -> list[str]:
        """Claims of this place, and guards."""
        (prefix,) = parse_qs(urlsplit(place).query)["prefix"]
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            claims = connection.execute(
                "SELECT encode(name, 'escape') || ' ' || id FROM lockline.claim WHERE starts_with(encode(name, 'escape'), %s)",
                [f"{prefix}:"],
            ).fetchall()
            guards = connection.execute("SELECT 'guard ' || id FROM lockline.guard").fetchall()
        return [row[0] for row in claims + guards]


@joins
class PgBouncerWorld(PostgresqlWorld):
    """The same through a pooler: no push, and each step in whichever session is free."""

    name = "postgresql-pgbouncer"
    pushes = watches = False

    def open(self) -> None:
        super().open()
        self.pooler = PgBouncer(self.server.port).start()
        self.url = self.pooler.url

    def close(self) -> None:
        self.pooler.remove()
        super().close()
