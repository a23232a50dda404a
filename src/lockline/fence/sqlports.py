"""The connections people have, each behind the same two questions: run this statement, is a transaction open.

Every method is `async def`. On a blocking connection none of them ever suspends, so that one text of the fence serves both.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from ..errors import ConfigError
from .rule import Mark, Offer
from .sqlerrors import shape_error
from .sqltext import FIELDS, PLACE, SQLITE_STANDS, rendered
from .sqltransaction import transaction_of

DIALECT_OF_DRIVER = {
    "sqlite3": "sqlite", "aiosqlite": "sqlite", "pysqlite2": "sqlite", "pysqlcipher3": "sqlite", "sqlcipher3": "sqlite",
    "psycopg": "postgresql", "psycopg2": "postgresql", "pg8000": "postgresql",
    "pymysql": "mysql", "MySQLdb": "mysql", "mysql": "mysql", "mariadb": "mysql",
}  # fmt: skip


class Done(NamedTuple):
    """What a statement did."""

    changed: int
    row: Any = None


class Port(Protocol):
    """One open connection."""

    dialect: str
    awaits: bool
    prepares: bool

    async def prepare(self) -> None:
        """Make ready; may begin the transaction that the connection would begin anyway."""

    async def execute(self, text: str, table: str, resource: str, offer: Offer | None, rows: bool) -> Done:
        """Run one statement, and fetch its first row if it has any."""

    def in_transaction(self) -> bool | None:
        """Whether what the next statement does lasts to a commit; None where the driver does not know."""

    def fresh(self) -> Any:
        """A context manager (or an async one) with a second connection to the same database; None where there is no way."""


def port_for(connection: Any, dialect: str | None) -> Port:
    """The port for whatever connection this is."""
    kind: Any = type(connection)
    return _port_class(kind)(connection, dialect)


@lru_cache(maxsize=256)
def _port_class(kind: Any) -> Callable[[Any, str | None], Port]:
    if _descends(kind, "django"):
        return _django_port
    if _descends(kind, "sqlalchemy"):
        return SqlAlchemyPort
    if _descends(kind, "psycopg"):
        return PsycopgPort
    if _descends(kind, "aiosqlite"):
        return AioSqlitePort
    if _descends(kind, "asyncpg"):
        return AsyncpgPort
    if not hasattr(kind, "cursor"):
        raise ConfigError(
            f"SqlFence takes a DB-API connection, or a connection or session of SQLAlchemy, not {kind.__name__}"
        )
    if inspect.iscoroutinefunction(getattr(kind, "commit", None)):
        raise ConfigError(
            f"SqlFence awaits connections of psycopg, asyncpg, aiosqlite and SQLAlchemy, not a {kind.__module__}.{kind.__name__}"
        )
    return SqlitePort if _descends(kind, "sqlite3") else DbApiPort


def _django_port(connection: Any, dialect: str | None) -> Port:
    """Django's wrapper writes placeholders in its own way; what it wraps is the driver's connection."""
    connection.ensure_connection()
    return port_for(connection.connection, dialect)


@lru_cache(maxsize=8)
def _module(name: str) -> Any:
    """A module that is there already: a connection of it was given."""
    return importlib.import_module(name)


@lru_cache(maxsize=256)
def _descends(kind: Any, package: str) -> bool:
    """Whether the class, or one it extends, is from this package or module."""
    return any(f"{base.__module__}.".startswith(f"{package}.") for base in kind.__mro__)


@lru_cache(maxsize=64)
def _driver(kind: Any) -> tuple[str, str]:
    """The dialect and placeholder style of a DB-API connection class."""
    for base in kind.__mro__:
        parts = base.__module__.split(".")
        # The module that says so may be the package (sqlite3) or further in (mysql.connector, pg8000.dbapi).
        for depth in range(len(parts), 0, -1):
            style = getattr(sys.modules.get(".".join(parts[:depth])), "paramstyle", None)
            if isinstance(style, str):
                return DIALECT_OF_DRIVER.get(parts[0], "other"), style
    return "other", "qmark"


def _bound(order: tuple[str, ...] | None, resource: str, offer: Offer | None) -> Any:
    if order == FIELDS and offer is not None:
        return resource, *offer
    if order == PLACE and offer is not None:
        return resource, offer.lock
    if offer is None:
        return () if order is not None else {}
    values = {"resource": resource, "lock": offer.lock, "token": offer.token, "grant": offer.grant}
    return values if order is None else tuple([values[field] for field in order])


class DbApiPort:
    """Any connection after PEP 249."""

    awaits = False
    prepares = False

    def __init__(self, connection: Any, dialect: str | None) -> None:
        kind: Any = type(connection)
        known, self._style = _driver(kind)
        self.dialect = dialect or known
        self._connection = connection

    async def prepare(self) -> None:
        pass

    async def execute(self, text: str, table: str, resource: str, offer: Offer | None, rows: bool) -> Done:
        sql, order = rendered(text, table, self._style)
        cursor = self._connection.cursor()
        try:
            values = _bound(order, resource, offer)
            if values:
                cursor.execute(sql, values)
            else:
                cursor.execute(sql)
            return Done(cursor.rowcount, _plain(cursor.fetchone()) if rows else None)
        finally:
            cursor.close()

    def in_transaction(self) -> bool | None:
        return transaction_of(self._connection)

    def fresh(self) -> Any:
        return None


class SqlitePort(DbApiPort):
    """A connection of sqlite3: the one where a statement takes less time than what is around it."""

    def __init__(self, connection: Any, dialect: str | None) -> None:
        self.dialect = dialect or "sqlite"
        self._connection = connection

    async def execute(self, text: str, table: str, resource: str, offer: Offer | None, rows: bool) -> Done:
        sql, order = rendered(text, table, "qmark")
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the user's may give anything
        cursor.execute(sql, _bound(order, resource, offer))
        return Done(cursor.rowcount, cursor.fetchone() if rows else None)

    def stands(self, table: str, resource: str, offer: Offer) -> bool:
        """Whether the mark is this offer's already; the file is then locked for it, as after any entering.

        What the fence would find as well, by fewer steps: for a holder that writes again and again.
        """
        cursor = self._connection.cursor()
        try:
            cursor.execute(rendered(SQLITE_STANDS, table, "qmark")[0], (resource, *offer))
        except Exception as problem:
            if shape_error(problem, table, "sqlite") is None:
                raise
            return False
        return bool(cursor.rowcount == 1 and self._connection.in_transaction)


class AioSqlitePort(DbApiPort):
    """An aiosqlite connection."""

    awaits = True

    async def execute(self, text: str, table: str, resource: str, offer: Offer | None, rows: bool) -> Done:
        sql, order = rendered(text, table, "qmark")
        async with self._connection.execute(sql, _bound(order, resource, offer)) as cursor:
            return Done(cursor.rowcount, _plain(await cursor.fetchone()) if rows else None)


class PsycopgPort:
    """A connection of psycopg 3, blocking or not."""

    prepares = False

    def __init__(self, connection: Any, dialect: str | None) -> None:
        self.dialect = dialect or "postgresql"
        self._connection = connection
        kind: Any = type(connection)
        # Cursors of our own: the user's may give rows as dictionaries or objects.
        self.awaits, self._cursor, self._row = _psycopg(kind)

    async def prepare(self) -> None:
        pass

    async def execute(self, text: str, table: str, resource: str, offer: Offer | None, rows: bool) -> Done:
        sql, order = rendered(text, table, "format")
        cursor = self._cursor(self._connection, row_factory=self._row)
        if self.awaits:
            await cursor.execute(sql, _bound(order, resource, offer) or None)
            return Done(cursor.rowcount, await cursor.fetchone() if rows else None)
        cursor.execute(sql, _bound(order, resource, offer) or None)
        return Done(cursor.rowcount, cursor.fetchone() if rows else None)

    def in_transaction(self) -> bool | None:
        return transaction_of(self._connection)

    def fresh(self) -> Any:
        info = self._connection.info
        return _Opened(
            lambda: type(self._connection).connect(info.dsn, password=info.password or None, autocommit=True)
        )


@lru_cache(maxsize=64)
def _psycopg(kind: Any) -> tuple[bool, Any, Any]:
    psycopg = _module("psycopg")
    awaits = issubclass(kind, psycopg.AsyncConnection)
    return awaits, psycopg.AsyncCursor if awaits else psycopg.Cursor, psycopg.rows.tuple_row


class AsyncpgPort:
    """A connection of asyncpg, or one out of its pool. It is in a transaction only between `BEGIN` and `COMMIT`."""

    awaits = True
    prepares = False

    def __init__(self, connection: Any, dialect: str | None) -> None:
        self.dialect = dialect or "postgresql"
        self._connection = connection

    async def prepare(self) -> None:
        pass

    async def execute(self, text: str, table: str, resource: str, offer: Offer | None, rows: bool) -> Done:
        sql, order = rendered(text, table, "dollar")
        values = _bound(order, resource, offer)
        if rows:
            return Done(0, await self._connection.fetchrow(sql, *values))
        words = str(await self._connection.execute(sql, *values)).split()
        return Done(int(words[-1]) if words[-1:] and words[-1].isdigit() else 0)

    def in_transaction(self) -> bool | None:
        return bool(self._connection.is_in_transaction())

    def fresh(self) -> Any:
        return None


class SqlAlchemyPort:
    """A connection or a session of SQLAlchemy 2, blocking or not."""

    prepares = True

    def __init__(self, connection: Any, dialect: str | None) -> None:
        kind: Any = type(connection)
        self.awaits = _descends(kind, "sqlalchemy.ext.asyncio")
        self._given = connection
        self._text = _module("sqlalchemy").text
        self._chosen = dialect
        self.dialect = dialect or "other"
        self._connection: Any = None

    async def prepare(self) -> None:
        # The session's connection, not the session: entering a fence must not flush what waits in it.
        if hasattr(self._given, "get_bind"):
            found = self._given.connection()
            self._connection = await found if self.awaits else found
        else:
            self._connection = self._given
        if self._chosen is None:
            name = self._connection.dialect.name
            self.dialect = (
                "mysql" if name == "mariadb" else name if name in ("sqlite", "postgresql", "mysql") else "other"
            )

    async def execute(self, text: str, table: str, resource: str, offer: Offer | None, rows: bool) -> Done:
        statement = _statement(self._text, text, table)
        values = {} if offer is None else _bound(None, resource, offer)
        used = {name: value for name, value in values.items() if f"{{{name}}}" in text}
        result = self._connection.execute(statement, used)
        if self.awaits:
            result = await result
        return Done(result.rowcount, result.fetchone() if rows else None)

    def _pooled(self) -> Any:
        return getattr(self._connection, "sync_connection", self._connection).connection

    def _raw(self) -> Any:
        return self._pooled().driver_connection

    def in_transaction(self) -> bool | None:
        raw = self._raw()
        if not hasattr(raw, "is_in_transaction"):
            return transaction_of(raw)
        # asyncpg begins nothing by itself. What stands before it does, with the first statement, unless it is told not to.
        return bool(raw.is_in_transaction()) or transaction_of(self._pooled().dbapi_connection)

    def fresh(self) -> Any:
        # Past the pool where that is possible: if all of it waits here, each for one more, nobody would get one.
        raw = self._raw()
        kind: Any = type(raw)
        if _descends(kind, "psycopg"):
            return PsycopgPort(raw, self._chosen).fresh()
        return self._connection.engine.connect()


@lru_cache(maxsize=64)
def _statement(make: Callable[[str], Any], text: str, table: str) -> Any:
    return make(rendered(text, table, "sqlalchemy")[0])


class _Opened:
    """A connection that is opened on entering and closed on leaving, in either flavour."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._connection: Any = None

    def __enter__(self) -> Any:
        self._connection = self._connect()
        return self._connection

    def __exit__(self, *problem: object) -> None:
        self._connection.close()

    async def __aenter__(self) -> Any:
        self._connection = await self._connect()
        return self._connection

    async def __aexit__(self, *problem: object) -> None:
        await self._connection.close()


def _plain(row: Any) -> Any:
    """Token and grant, whatever the user's connection makes of a row."""
    if row is None or isinstance(row, tuple):
        return row
    if hasattr(row, "keys"):
        try:
            return row["token"], row["grant_id"]
        except (KeyError, IndexError):
            return tuple(row[name] for name in row.keys())  # noqa: SIM118 (a sqlite3.Row iterates over values)
    return row


def mark_of(row: Any, table: str) -> Mark | None:
    """The mark in a fetched row; ConfigError if the columns are not what they should be."""
    if row is None:
        return None
    token, grant = row[0], row[1]
    if isinstance(grant, (bytes, bytearray, memoryview)):
        grant = bytes(grant).decode()
    if type(token) is not int or not isinstance(grant, str):
        raise ConfigError(
            f"the table {table!r} is of another shape: its token is no whole number, or its grant no text"
        )
    return Mark(token, grant)
