"""`postgresql://`: the database that you already have."""

from __future__ import annotations

from typing import Any

from ...runtime import Runtime
from .backend import Postgresql, PostgresqlBackend
from .tables import PostgresqlTables
from .target import parse, understand


def connect(target: Any, runtime: Runtime, **options: Any) -> PostgresqlBackend:
    """The backend for a URL, a pool of psycopg, an engine of SQLAlchemy or Django's connection, by whose settings it connects; nothing is sent.

    `schema`: where `lockline init` has put the tables. `prefix`: what names begin with there; for programs that share a schema and not
    their locks. `listen`: the URL of a direct way for LISTEN, where this one leads through a pooler. `timeout`: one unanswered try is
    given up after so many seconds. `max_connections`: so many steps at once. `tls`, `ca`, `cert`, `key` and their kin as everywhere.
    Other options are those of libpq (`sslmode`, `application_name`, ...).
    """
    return PostgresqlBackend(Postgresql(understand(target, options)), runtime)


def tables(url: str) -> PostgresqlTables:
    """What `lockline init` makes there."""
    return PostgresqlTables(parse(url))


__all__ = ["connect", "tables"]
