"""`mysql://`: MySQL or MariaDB, the database that you already have."""

from __future__ import annotations

from typing import Any

from ...runtime import Runtime
from ..sql.backend import SqlBackend
from .backend import Mysql
from .tables import MysqlTables
from .target import parse


def connect(target: Any, runtime: Runtime, **options: Any) -> SqlBackend:
    """The backend for a URL; nothing is sent.

    `prefix`: what names begin with there; for programs that share a database and not their locks. `timeout`: one unanswered try is
    given up after so many seconds. `max_connections`: so many steps at once. `socket`: the path of a Unix socket, instead of a host.
    `tls`, `ca`, `cert`, `key` and their kin as everywhere.
    """
    return SqlBackend(Mysql(parse(target, options)), runtime)


def tables(url: str) -> MysqlTables:
    """What `lockline init` makes there."""
    return MysqlTables(parse(url))


__all__ = ["connect", "tables"]
