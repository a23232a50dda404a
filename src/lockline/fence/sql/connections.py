"""The connections people have, each behind the same two questions: run this statement, is a transaction open.

Every method is `async def`. On a blocking connection none of them ever suspends, so that one text of the fence serves both.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple

from ...errors import ConfigError
from ..rule import Offer
from .transaction import by_libpq, transaction_of

FIELDS: Final = ("resource", "lock", "token", "grant")
PLACE: Final = ("resource", "lock")

DIALECT_OF_DRIVER = {
    "sqlite3": "sqlite", "aiosqlite": "sqlite", "pysqlite2": "sqlite", "pysqlcipher3": "sqlite", "sqlcipher3": "sqlite",
    "psycopg": "postgresql", "psycopg2": "postgresql", "pg8000": "postgresql",
    "pymysql": "mysql", "MySQLdb": "mysql", "mysql": "mysql", "mariadb": "mysql",
}  # fmt: skip


class Done(NamedTuple):
    """What a statement did."""

    changed: int
    row: Any = None


class SqlConnection:
    """One open connection of somebody's."""

    awaits = False
    prepares = False
    """Whether it has something to make ready."""
    usual_dialect = "other"

    def __init__(self, connection: Any, dialect: str | None) -> None:
        self._connection = connection
        self.dialect = dialect or self.usual_dialect

    async def prepare(self) -> None:
        """Make ready; may begin the transaction that the connection would begin anyway."""

    async def execute(self, text: str, table: str, resource: str, offer: Offer, rows: bool) -> Done:
        """Run one statement, and fetch its first row if it has any."""
        raise NotImplementedError

    def in_transaction(self) -> bool | None:
        """Whether what the next statement does lasts to a commit; None where the driver does not know."""
        return transaction_of(self._connection)

    async def fresh(self) -> Any:
        """A context manager (or an async one) with a second connection to the same database; None where there is no way."""
        return None


def connection_for(connection: Any, dialect: str | None) -> SqlConnection:
    """Whatever connection this is, behind the two questions."""
    kind: Any = type(connection)
    return _class_for(kind)(connection, dialect)


@lru_cache(maxsize=256)
def _class_for(kind: Any) -> Callable[[Any, str | None], SqlConnection]:
    if _descends(kind, "django"):
        return _django_connection
    if _descends(kind, "sqlalchemy"):
        # What raw_connection() gives: the driver's own connection, lent by a pool.
        return _lent_connection if hasattr(kind, "driver_connection") else SqlAlchemyConnection
    if _descends(kind, "psycopg"):
        return PsycopgConnection
    if _descends(kind, "aiosqlite"):
        return AioSqliteConnection
    if _descends(kind, "asyncpg"):
        return AsyncpgConnection
    if not hasattr(kind, "cursor"):
        raise ConfigError(
            f"SqlFence takes a DB-API connection, or a connection or session of SQLAlchemy, not {kind.__name__}"
        )
    if inspect.iscoroutinefunction(getattr(kind, "commit", None)):
        raise ConfigError(
            f"SqlFence awaits connections of psycopg, asyncpg, aiosqlite and SQLAlchemy, not a {kind.__module__}.{kind.__name__}"
        )
    return SqliteConnection if _descends(kind, "sqlite3") else DbApiConnection


def _django_connection(connection: Any, dialect: str | None) -> SqlConnection:
    """Django's wrapper writes placeholders in its own way; what it wraps is the driver's connection."""
    connection.ensure_connection()
    return connection_for(connection.connection, dialect)


def _lent_connection(connection: Any, dialect: str | None) -> SqlConnection:
    return connection_for(connection.driver_connection, dialect)


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


@lru_cache(maxsize=256)
def _rendered(text: str, table: str, style: str) -> tuple[str, tuple[str, ...]]:
    """The statement with the driver's placeholders for what stands in braces, and the fields in their order."""
    order: list[str] = []

    def placeholder(match: re.Match[str]) -> str:
        field = match[1]
        if field == "table":
            return table
        order.append(field)
        if style == "named":
            return f":{field}"
        if style == "numeric":
            return f":{len(order)}"
        if style == "dollar":
            return f"${len(order)}"
        return "?" if style == "qmark" else "%s"

    return re.sub(r"\{(\w+)\}", placeholder, text), tuple(order)


def _bound(text: str, table: str, style: str, resource: str, offer: Offer) -> tuple[str, Any]:
    """The statement as the driver wants it, and the values for it."""
    sql, order = _rendered(text, table, style)
    if style != "named":
        if order == FIELDS:
            return sql, (resource, *offer)
        if not order:
            return sql, ()
        if order == PLACE:
            return sql, (resource, offer.lock)
    values = dict(zip(FIELDS, (resource, *offer), strict=True))
    if style == "named":
        return sql, {field: values[field] for field in order}
    return sql, tuple([values[field] for field in order])


class DbApiConnection(SqlConnection):
    """Any connection after PEP 249."""

    def __init__(self, connection: Any, dialect: str | None) -> None:
        kind: Any = type(connection)
        known, self._style = _driver(kind)
        super().__init__(connection, dialect or known)

    async def execute(self, text: str, table: str, resource: str, offer: Offer, rows: bool) -> Done:
        sql, values = _bound(text, table, self._style, resource, offer)
        cursor = self._connection.cursor()
        try:
            if values:
                cursor.execute(sql, values)
            else:
                cursor.execute(sql)
            return Done(cursor.rowcount, _plain(cursor.fetchone()) if rows else None)
        finally:
            cursor.close()


class SqliteConnection(SqlConnection):
    """A connection of sqlite3: the one where a statement takes less time than what is around it."""

    usual_dialect = "sqlite"

    async def execute(self, text: str, table: str, resource: str, offer: Offer, rows: bool) -> Done:
        sql, values = _bound(text, table, "qmark", resource, offer)
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the user's may give anything
        cursor.execute(sql, values)
        return Done(cursor.rowcount, cursor.fetchone() if rows else None)

    def confirm(self, text: str, table: str, resource: str, offer: Offer) -> bool:
        """Whether a statement with all four fields met a row, inside a transaction: by as few steps as can be."""
        done = self._connection.execute(_rendered(text, table, "qmark")[0], (resource, *offer))
        return bool(done.rowcount == 1 and self._connection.in_transaction)


class AioSqliteConnection(SqlConnection):
    """An aiosqlite connection."""

    awaits = True
    usual_dialect = "sqlite"

    async def execute(self, text: str, table: str, resource: str, offer: Offer, rows: bool) -> Done:
        sql, values = _bound(text, table, "qmark", resource, offer)
        async with self._connection.execute(sql, values) as cursor:
            return Done(cursor.rowcount, _plain(await cursor.fetchone()) if rows else None)


class PsycopgConnection(SqlConnection):
    """A connection of psycopg 3, blocking or not."""

    usual_dialect = "postgresql"

    def __init__(self, connection: Any, dialect: str | None) -> None:
        super().__init__(connection, dialect)
        kind: Any = type(connection)
        # Cursors of our own: the user's may give rows as dictionaries or objects.
        self.awaits, self._cursor, self._row = _psycopg(kind)

    def in_transaction(self) -> bool | None:
        return by_libpq(self._connection)

    async def execute(self, text: str, table: str, resource: str, offer: Offer, rows: bool) -> Done:
        sql, values = _bound(text, table, "format", resource, offer)
        cursor = self._cursor(self._connection, row_factory=self._row)
        if self.awaits:
            await cursor.execute(sql, values or None)
            return Done(cursor.rowcount, await cursor.fetchone() if rows else None)
        cursor.execute(sql, values or None)
        return Done(cursor.rowcount, cursor.fetchone() if rows else None)

    async def fresh(self) -> Any:
        info = self._connection.info
        opened = type(self._connection).connect(info.dsn, password=info.password or None, autocommit=True)
        return await opened if self.awaits else opened


@lru_cache(maxsize=64)
def _psycopg(kind: Any) -> tuple[bool, Any, Any]:
    psycopg = importlib.import_module("psycopg")  # there already: a connection of it was given
    awaits = issubclass(kind, psycopg.AsyncConnection)
    return awaits, psycopg.AsyncCursor if awaits else psycopg.Cursor, psycopg.rows.tuple_row


class AsyncpgConnection(SqlConnection):
    """A connection of asyncpg, or one out of its pool. It is in a transaction only between `BEGIN` and `COMMIT`."""

    awaits = True
    usual_dialect = "postgresql"

    async def execute(self, text: str, table: str, resource: str, offer: Offer, rows: bool) -> Done:
        sql, values = _bound(text, table, "dollar", resource, offer)
        if rows:
            return Done(0, await self._connection.fetchrow(sql, *values))
        words = str(await self._connection.execute(sql, *values)).split()
        return Done(int(words[-1]) if words[-1:] and words[-1].isdigit() else 0)

    def in_transaction(self) -> bool | None:
        return bool(self._connection.is_in_transaction())


class SqlAlchemyConnection(SqlConnection):
    """A connection or a session of SQLAlchemy 2, blocking or not."""

    prepares = True

    def __init__(self, connection: Any, dialect: str | None) -> None:
        super().__init__(connection, dialect)
        kind: Any = type(connection)
        self.awaits = _descends(kind, "sqlalchemy.ext.asyncio")
        self._chosen = dialect

    async def prepare(self) -> None:
        # The session's connection, not the session: entering a fence must not flush what waits in it.
        if hasattr(self._connection, "get_bind"):
            found = self._connection.connection()
            self._connection = await found if self.awaits else found
        if self._chosen is None:
            name = self._connection.dialect.name
            self.dialect = {"mariadb": "mysql"}.get(
                name, name if name in ("sqlite", "postgresql", "mysql") else "other"
            )

    async def execute(self, text: str, table: str, resource: str, offer: Offer, rows: bool) -> Done:
        sql, values = _bound(text, table, "named", resource, offer)
        result = self._connection.execute(_statement(sql), values)
        if self.awaits:
            result = await result
        return Done(result.rowcount, result.fetchone() if rows else None)

    def _pooled(self) -> Any:
        return getattr(self._connection, "sync_connection", self._connection).connection

    def in_transaction(self) -> bool | None:
        raw = self._pooled().driver_connection
        if not hasattr(raw, "is_in_transaction"):
            return transaction_of(raw)
        # asyncpg begins nothing by itself. What stands before it does, with the first statement, unless it is told not to.
        return bool(raw.is_in_transaction()) or transaction_of(self._pooled().dbapi_connection)

    async def fresh(self) -> Any:
        # Past the pool: if all of it waits here, each for one more, nobody would get one.
        raw = self._pooled().driver_connection
        kind: Any = type(raw)
        if _descends(kind, "psycopg"):
            return await PsycopgConnection(raw, self._chosen).fresh()
        engine = self._connection.engine
        return _one_apart_awaited(engine) if self.awaits else _one_apart(engine)


def _with_its_own_pool(engine: Any) -> Any:
    made = importlib.import_module("sqlalchemy.engine").Engine
    return made(engine.pool.recreate(), engine.dialect, engine.url)


@contextmanager
def _one_apart(engine: Any) -> Iterator[Any]:
    """A connection to where the engine leads, past its pool."""
    other = _with_its_own_pool(engine)
    try:
        with other.connect() as connection:
            yield connection
    finally:
        other.dispose()


@asynccontextmanager
async def _one_apart_awaited(engine: Any) -> AsyncIterator[Any]:
    other = importlib.import_module("sqlalchemy.ext.asyncio").AsyncEngine(_with_its_own_pool(engine.sync_engine))
    try:
        async with other.connect() as connection:
            yield connection
    finally:
        await other.dispose()


@lru_cache(maxsize=64)
def _statement(sql: str) -> Any:
    return importlib.import_module("sqlalchemy").text(sql)


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
