"""MySQL in the contract suite, as MariaDB."""

from __future__ import annotations

from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pymysql
import pytest

from lockline.backends.mysql import tables
from tests.servers.mysql import MariadbServer

from .worlds import World, joins


@joins
class MysqlWorld(World):
    """Each test has a prefix of its own."""

    name = "mysql"
    wall_clock = True
    exclusion = "server"
    token_survives: ClassVar = frozenset({"release", "expiry", "restart", "failover"})
    pushes = watches = False
    marks: ClassVar[tuple[pytest.MarkDecorator, ...]] = (pytest.mark.server,)

    def open(self) -> None:
        # Without a flush for each commit: on this machine all servers share one disk.
        self.server = MariadbServer(self.folder / "mysql", "--innodb-flush-log-at-trx-commit=0").start()
        tables(self.server.url).make()

    def close(self) -> None:
        self.server.remove()

    def place(self) -> str:
        return f"{self.server.url}?prefix={self.unique()}"

    def debris(self, place: str) -> list[str]:
        """Claims of this place."""
        (prefix,) = parse_qs(urlsplit(place).query)["prefix"]
        with (
            pymysql.connect(
                host="127.0.0.1", port=self.server.port, user="root", database="lockline", autocommit=True
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("SELECT name, id FROM lockline_claim WHERE name LIKE %s", [f"{prefix}:%"])
            return [f"{name.decode()} {claim_id}" for name, claim_id in cursor.fetchall()]
