"""Servers whose data is a copy: to make a cluster and its tables takes more than all else that a server does in a test."""

from __future__ import annotations

import subprocess
from functools import lru_cache
from pathlib import Path

from lockline.backends.postgresql import tables
from tests.servers.postgres import PostgresServer


@lru_cache(maxsize=1)
def _template() -> Path:
    """The data of a server that was stopped after the tables of Lockline had been made; it goes with this process."""
    server = PostgresServer("-c", "fsync=off").start()
    tables(server.url).make()
    server.stop()
    return server.data


class CopiedPostgres(PostgresServer):
    """A server with the tables of Lockline."""

    def _make_data(self, data: Path) -> None:
        subprocess.run(["cp", "-a", "-T", str(_template()), str(data)], check=True, capture_output=True)
