"""PostgreSQL and MariaDB, and the file of this machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from ..servers.process import ServerProcess, wait_for
from ..servers.proxy import Proxy
from .face import Address, Servers

ROOM = ("-c", "max_connections=250")
"""For fifty waiters, twice: a client that listens has a second connection."""


class PostgresqlFamily(Servers):
    """One PostgreSQL; a standby, or a pooler, where that is what it is about."""

    url = "postgresql://lockline@{hosts}/postgres"

    def __init__(self, folder: Path, wants: str) -> None:
        from ..servers.postgres import PostgresServer

        super().__init__(folder, wants)
        self.labels = (
            ["primary", "standby"] if wants == "replica" else ["PgBouncer" if wants == "pooler" else "PostgreSQL"]
        )
        os.chmod(folder, 0o755)
        env = self.clock_env(0)
        self._server = PostgresServer(*ROOM)
        self._server.env = env
        self._more: list[Any] = []
        self._link: Proxy | None = None

    @property
    def addresses(self) -> list[Address]:
        return [("127.0.0.1", self._more[0].port if self.wants == "pooler" else self._server.port)]

    def processes(self) -> list[ServerProcess]:
        return [self._server, *self._more]

    def start(self) -> None:
        import psycopg

        from ...backends.postgresql.schema import ddl
        from ..locks.database import SCHEMA
        from ..servers.pgbouncer import PgBouncer
        from ..servers.postgres import PostgresReplica

        self._server.start()
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            connection.execute(ddl("lockline"))
            connection.execute(SCHEMA)
        if self.wants == "pooler":
            self._more = [PgBouncer(self._server.port, sessions=1).start()]
        if self.wants == "replica":
            self._link = Proxy(("127.0.0.1", self._server.port))
            through = f"primary_conninfo=host=127.0.0.1 port={self._link.port} user=lockline"
            self._more = [PostgresReplica(self._server, "-c", through, *ROOM).start()]

            def follows() -> bool:
                with psycopg.connect(self._server.url, autocommit=True) as connection:
                    row = connection.execute(
                        "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
                    ).fetchone()
                    return row is not None and row[0] == 1

            wait_for(follows, 20, "replication")

    def isolate(self) -> None:
        assert self._link is not None
        self._link.black_hole()

    def fail_over(self, primary: int) -> Address | None:
        self._server.kill()
        standby = self._more[0]
        standby.promote()
        return "127.0.0.1", standby.port

    def stop(self) -> None:
        for server in (*self._more, self._server):
            with contextlib.suppress(Exception):
                server.remove()
        if self._link is not None:
            self._link.close()


class MysqlFamily(Servers):
    """One MariaDB."""

    url = "mysql://root@{hosts}/lockline"

    def __init__(self, folder: Path, wants: str) -> None:
        from ..servers.mysql import MariadbServer

        super().__init__(folder, wants)
        self.labels = ["MariaDB"]
        self._server = MariadbServer(folder / "mysql", "--innodb-flush-log-at-trx-commit=2")
        self._server.env = self.clock_env(0)

    @property
    def addresses(self) -> list[Address]:
        return [("127.0.0.1", self._server.port)]

    def processes(self) -> list[ServerProcess]:
        return [self._server]

    def start(self) -> None:
        from ...backends.mysql import tables

        self._server.start()
        tables(self._server.url).make()

    def stop(self) -> None:
        self._server.remove()


class LocalFamily(Servers):
    """A file of this machine: no server at all."""

    shared = False

    def __init__(self, folder: Path, wants: str) -> None:
        super().__init__(folder, wants)
        self.labels = ["file"]
        self.url = f"local://{folder}/locks.db"  # type: ignore[misc]

    @property
    def addresses(self) -> list[Address]:
        return []

    def processes(self) -> list[ServerProcess]:
        return []

    def start(self) -> None:
        pass
