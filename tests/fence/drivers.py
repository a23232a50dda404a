"""Every kind of connection that SqlFence takes, opened as people open it, behind one way to drive them all."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..servers.mysql import MysqlServer
from ..servers.postgres import PostgresServer
from ..servers.process import missing

DATABASE = "commits"


@dataclass(frozen=True)
class Place:
    """Where the databases are."""

    folder: Path
    postgres: PostgresServer | None = None
    mysql: MysqlServer | None = None

    @property
    def file(self) -> str:
        return str(self.folder / "data.db")

    @property
    def mine(self) -> dict[str, Any]:
        assert self.mysql is not None
        return {"host": "127.0.0.1", "port": self.mysql.port, "user": self.mysql.user, "database": DATABASE}

    @property
    def theirs(self) -> dict[str, Any]:
        assert self.postgres is not None
        return {"host": "127.0.0.1", "port": self.postgres.port, "user": "lockline", "database": "postgres"}

    def url(self, driver: str) -> str:
        """As SQLAlchemy writes it."""
        if driver.startswith("sqlite"):
            return f"{driver}:///{self.file}"
        where = self.mine if driver.startswith("mysql") else self.theirs
        return f"{driver}://{where['user']}@{where['host']}:{where['port']}/{where['database']}"


class Session:
    """One connection, whatever its flavour: every step is awaited."""

    def __init__(self, connection: Any, run: Callable[[str], Any], *, begins: bool = True) -> None:
        self.connection = connection
        self._run = run
        self._begins = begins

    async def run(self, sql: str) -> Any:
        """The first value of the first row, if there is one."""
        return await done(self._run(sql))

    async def begin(self) -> None:
        """By hand, where the driver does not begin by itself."""
        if not self._begins:
            await self.run("BEGIN")

    async def commit(self) -> None:
        await (done(self.connection.commit()) if self._begins else self.run("COMMIT"))

    async def rollback(self) -> None:
        await (done(self.connection.rollback()) if self._begins else self.run("ROLLBACK"))


async def done(result: Any) -> Any:
    """The result, awaited where it has to be."""
    return await result if inspect.isawaitable(result) else result


def by_cursor(connection: Any) -> Callable[[str], Any]:
    def run(sql: str) -> Any:
        cursor = connection.cursor()
        try:
            cursor.execute(sql)
            return cursor.fetchone()[0] if cursor.description else None
        finally:
            cursor.close()

    return run


def _sqlite3(place: Place, automatic: bool) -> Any:
    return sqlite3.connect(place.file, isolation_level=None) if automatic else sqlite3.connect(place.file)


def _psycopg(place: Place, automatic: bool) -> Any:
    import psycopg

    return psycopg.connect(dbname="postgres", **_but(place.theirs, "database"), autocommit=automatic)


def _psycopg2(place: Place, automatic: bool) -> Any:
    import psycopg2

    connection = psycopg2.connect(**place.theirs)
    connection.autocommit = automatic
    return connection


def _pg8000(place: Place, automatic: bool) -> Any:
    import pg8000.dbapi

    connection = pg8000.dbapi.connect(**place.theirs)
    connection.autocommit = automatic
    return connection


def _pymysql(place: Place, automatic: bool) -> Any:
    import pymysql

    return pymysql.connect(**place.mine, autocommit=automatic)


def need_mysqlclient() -> None:
    """Skip where it could not be compiled; fail where CI is set."""
    if importlib.util.find_spec("MySQLdb") is None:
        missing("mysqlclient is not installed; `make setup` installs it")


def _mysqlclient(place: Place, automatic: bool) -> Any:
    import MySQLdb

    return MySQLdb.connect(**place.mine, autocommit=automatic)


def _connector(place: Place, automatic: bool) -> Any:
    import mysql.connector

    return mysql.connector.connect(**place.mine, autocommit=automatic)


def blocking(connect: Callable[[Place, bool], Any]) -> Opener:
    @contextlib.asynccontextmanager
    async def opened(place: Place, automatic: bool) -> AsyncIterator[Session]:
        with contextlib.closing(connect(place, automatic)) as connection:
            yield Session(connection, by_cursor(connection), begins=not automatic)

    return opened


@contextlib.asynccontextmanager
async def _psycopg_awaited(place: Place, automatic: bool) -> AsyncIterator[Session]:
    import psycopg

    connection = await psycopg.AsyncConnection.connect(
        dbname="postgres", **_but(place.theirs, "database"), autocommit=automatic
    )

    async def run(sql: str) -> Any:
        cursor = await connection.execute(sql.encode())
        row = await cursor.fetchone() if cursor.description else None
        return row and row[0]

    try:
        yield Session(connection, run, begins=not automatic)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def _asyncpg(place: Place, automatic: bool) -> AsyncIterator[Session]:
    import asyncpg

    # It never begins by itself: outside `transaction()` each statement is one.
    connection = await asyncpg.connect(**place.theirs)
    try:
        yield Session(connection, connection.fetchval, begins=False)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def _asyncpg_pool(place: Place, automatic: bool) -> AsyncIterator[Session]:
    import asyncpg

    async with asyncpg.create_pool(**place.theirs, min_size=1) as pool, pool.acquire() as connection:
        yield Session(connection, connection.fetchval, begins=False)


@contextlib.asynccontextmanager
async def _aiosqlite(place: Place, automatic: bool) -> AsyncIterator[Session]:
    import aiosqlite

    async with aiosqlite.connect(place.file, isolation_level=None if automatic else "DEFERRED") as connection:

        async def run(sql: str) -> Any:
            async with connection.execute(sql) as cursor:
                row = await cursor.fetchone() if cursor.description else None
                return row and row[0]

        yield Session(connection, run, begins=not automatic)


def sqlalchemy(driver: str, *, awaited: bool = False, at_the_engine: bool = False) -> Opener:
    @contextlib.asynccontextmanager
    async def opened(place: Place, automatic: bool) -> AsyncIterator[Session]:
        from sqlalchemy import create_engine, text
        from sqlalchemy.ext.asyncio import create_async_engine

        make: Any = create_async_engine if awaited else create_engine
        engine = make(place.url(driver), **({"isolation_level": "AUTOCOMMIT"} if automatic and at_the_engine else {}))
        connection = engine.connect()
        if awaited:
            await connection.start()
        if automatic and not at_the_engine:
            await done(connection.execution_options(isolation_level="AUTOCOMMIT"))

        async def run(sql: str) -> Any:
            result = await done(connection.execute(text(sql)))
            return result.scalar() if result.returns_rows else None

        try:
            yield Session(connection, run, begins=not automatic)
        finally:
            await done(connection.close())
            await done(engine.dispose())

    return opened


def _but(options: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != name}


Opener = Callable[[Place, bool], contextlib.AbstractAsyncContextManager[Session]]
Stories = Callable[[Session], Awaitable[None]]

DRIVERS: dict[str, Opener] = {
    "sqlite3": blocking(_sqlite3),
    "psycopg": blocking(_psycopg),
    "psycopg2": blocking(_psycopg2),
    "pg8000": blocking(_pg8000),
    "PyMySQL": blocking(_pymysql),
    "mysqlclient": blocking(_mysqlclient),
    "mysql-connector": blocking(_connector),
    "psycopg, asyncio": _psycopg_awaited,
    "asyncpg": _asyncpg,
    "asyncpg, from its pool": _asyncpg_pool,
    "aiosqlite": _aiosqlite,
    "SQLAlchemy on sqlite3": sqlalchemy("sqlite"),
    "SQLAlchemy on psycopg": sqlalchemy("postgresql+psycopg"),
    "SQLAlchemy on psycopg2": sqlalchemy("postgresql+psycopg2"),
    "SQLAlchemy on pg8000": sqlalchemy("postgresql+pg8000"),
    "SQLAlchemy on PyMySQL": sqlalchemy("mysql+pymysql"),
    "SQLAlchemy on PyMySQL, set at the engine": sqlalchemy("mysql+pymysql", at_the_engine=True),
    "SQLAlchemy on mysqlclient": sqlalchemy("mysql+mysqldb"),
    "SQLAlchemy on mysql-connector": sqlalchemy("mysql+mysqlconnector"),
    "SQLAlchemy on psycopg, asyncio": sqlalchemy("postgresql+psycopg", awaited=True),
    "SQLAlchemy on asyncpg": sqlalchemy("postgresql+asyncpg", awaited=True),
    "SQLAlchemy on asyncpg, set at the engine": sqlalchemy("postgresql+asyncpg", awaited=True, at_the_engine=True),
    "SQLAlchemy on aiosqlite": sqlalchemy("sqlite+aiosqlite", awaited=True),
}


def is_mysql(name: str) -> bool:
    return "mysql" in name.lower()


def is_sqlite(name: str) -> bool:
    return "sqlite" in name.lower()
