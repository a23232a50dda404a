"""A connection that commits by itself is refused, with every driver; not knowing is a refusal."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from lockline import ConfigError, StaleToken
from lockline.fence import SqlFence
from lockline.fence.sql.visit import Visit

from ..servers.postgres import PostgresServer
from ..tier import sample
from .drivers import DATABASE, DRIVERS, Place, Session, done, is_mysql, is_sqlite, need_mysqlclient

FENCE = SqlFence()


def named(names: Iterable[str]) -> list[Any]:
    return [name if is_sqlite(name) else pytest.param(name, marks=pytest.mark.server) for name in names]


ONE_OF_EACH = [
    "sqlite3",
    "psycopg",
    "PyMySQL",
    "aiosqlite",
    "asyncpg",
    "SQLAlchemy on PyMySQL",
    "SQLAlchemy on psycopg, asyncio",
]
"""A driver of each database and flavour. That each driver is seen through is shown with all of them."""
SOME = sample(ONE_OF_EACH, list(DRIVERS))


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    name = request.getfixturevalue("name")
    if name.endswith("mysqlclient"):
        need_mysqlclient()
    if is_sqlite(name):
        place = Place(tmp_path)
    elif is_mysql(name):
        import pymysql

        place = Place(tmp_path, mysql=request.getfixturevalue("mysql"))
        with contextlib.closing(pymysql.connect(**{**place.mine, "database": None})) as admin:
            admin.cursor().execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
            admin.cursor().execute(f"DROP TABLE IF EXISTS {DATABASE}.lockline_fence, {DATABASE}.counter")
    else:
        import psycopg

        place = Place(tmp_path, postgres=request.getfixturevalue("postgres"))
        with psycopg.connect(place.postgres.url) as connection:  # type: ignore[union-attr]
            connection.execute("DROP TABLE IF EXISTS lockline_fence, counter")

    async def prepare() -> None:
        async with DRIVERS[name](place, False) as session:
            await session.begin()
            await done(FENCE.create(session.connection))
            await session.run("CREATE TABLE counter (value INTEGER)")
            await session.run("INSERT INTO counter VALUES (0)")
            await session.commit()

    asyncio.run(prepare())
    return place


def test_the_page_names_what_is_tried_here() -> None:
    page = (Path(__file__).parents[2] / "docs" / "fencing.md").read_text()
    table = page.split("| connections of |")[1].split("\n\n")[0]
    told = {row.split("|")[1].strip() for row in table.splitlines()[2:]}
    assert told == {name.partition(", set at")[0] for name in DRIVERS} | {"Django"}


async def enter(session: Session, token: int, fence: SqlFence = FENCE) -> None:
    await done(fence.enter(session.connection, "counter", token))


async def mark(name: str, place: Place) -> Any:
    """What another connection sees."""
    async with DRIVERS[name](place, False) as session:
        return await done(FENCE.look(session.connection, "counter"))


@pytest.mark.parametrize("name", named(DRIVERS))
def test_a_connection_that_commits_by_itself_is_refused_and_a_transaction_is_not(name: str, place: Place) -> None:
    asyncio.run(refused(name, place))
    asyncio.run(stands_or_falls(name, place))


async def refused(name: str, place: Place) -> None:
    """Nothing changes."""
    async with DRIVERS[name](place, True) as session:
        for _ in range(2):
            with pytest.raises(ConfigError, match="begin a transaction"):
                await enter(session, 5)
        assert await mark(name, place) is None
        assert await session.run("SELECT value FROM counter") == 0, "the connection goes on"


async def stands_or_falls(name: str, place: Place) -> None:
    """What was entered is of the transaction."""
    async with DRIVERS[name](place, False) as session:
        await session.begin()
        await enter(session, 5)
        await session.run("UPDATE counter SET value = 1")
        await session.rollback()
        assert await mark(name, place) is None
        await session.begin()
        await enter(session, 5)
        await enter(session, 6)
        await session.run("UPDATE counter SET value = 2")
        await session.commit()
        assert await mark(name, place) == (6, "")
        await session.begin()
        with pytest.raises(StaleToken):
            await enter(session, 5)
        await session.rollback()
        await session.begin()
        with pytest.raises(ConfigError, match="create"):
            await enter(session, 7, SqlFence("not_there"))
        await session.rollback()
        assert await session.run("SELECT value FROM counter") == 2


@pytest.mark.parametrize("name", named(SOME))
def test_a_transaction_begun_by_hand_is_one(name: str, place: Place) -> None:
    async def story() -> None:
        async with DRIVERS[name](place, True) as session:
            await session.run("BEGIN")
            await enter(session, 5)
            await session.run("ROLLBACK")
            assert await mark(name, place) is None
            await session.run("BEGIN")
            await enter(session, 5)
            await session.run("UPDATE counter SET value = 1")
            await session.run("COMMIT")
            assert await mark(name, place) == (5, "")
            with pytest.raises(ConfigError, match="begin a transaction"):
                await enter(session, 6)

    asyncio.run(story())


@pytest.mark.parametrize("name", named(SOME))
def test_an_old_writer_that_commits_by_itself_would_bury_the_newer_ones_write(
    name: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def played() -> int:
        async with DRIVERS[name](place, True) as old, DRIVERS[name](place, False) as new:
            await enter(old, 5)
            seen = await old.run("SELECT value FROM counter")
            await new.begin()
            await enter(new, 6)
            await new.run("UPDATE counter SET value = value + 50")
            await new.commit()
            await old.run(f"UPDATE counter SET value = {seen} + 1")
            return int(await old.run("SELECT value FROM counter"))

    with pytest.raises(ConfigError, match="begin a transaction"):
        asyncio.run(played())

    async def believes(self: Visit, ask: Any = None) -> None:
        pass

    # The fence that asks nobody: the 50 are gone. It is what the refusal is for.
    monkeypatch.setattr(Visit, "demand_transaction", believes)
    assert asyncio.run(played()) == 1


class Silent:
    """A connection after PEP 249 and nothing beyond it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.commit, self.rollback = connection.commit, connection.rollback

    def cursor(self) -> Any:
        return self._connection.cursor()


def test_a_driver_that_does_not_tell_is_refused(tmp_path: Path) -> None:
    fence = SqlFence(dialect="other")
    with contextlib.closing(sqlite3.connect(tmp_path / "data.db")) as connection:
        fence.create(connection)
        with pytest.raises(ConfigError, match="cannot be seen"):
            fence.enter(Silent(connection), "r", 5)
        assert fence.look(connection, "r") is None


@pytest.mark.server
def test_a_pipeline_is_no_transaction(postgres: PostgresServer) -> None:
    import psycopg

    with psycopg.connect(postgres.url) as connection:
        connection.execute("DROP TABLE IF EXISTS lockline_fence")
        FENCE.create(connection)
    with psycopg.connect(postgres.url, autocommit=True) as connection, connection.pipeline():
        connection.execute("SELECT 1")  # under way: the connection is neither idle nor in a transaction
        with pytest.raises(ConfigError, match="begin a transaction"):
            FENCE.enter(connection, "r", 5)
        with connection.transaction():
            FENCE.enter(connection, "r", 6)
            with pytest.raises(StaleToken):
                FENCE.enter(connection, "r", 5)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has `autocommit` since Python 3.12")
@pytest.mark.parametrize("kind", ["sqlite3", "aiosqlite"])
def test_the_autocommit_of_newer_pythons_is_seen(kind: str, tmp_path: Path) -> None:
    async def story(automatic: bool) -> None:
        import aiosqlite

        file = tmp_path / "data.db"
        if kind == "sqlite3":
            opened: Any = sqlite3.connect  # the types are those of Python 3.11, which has no autocommit
            connection: Any = opened(file, autocommit=automatic)
        else:
            connection = await aiosqlite.connect(file, autocommit=automatic)
        try:
            await done(FENCE.create(connection))
            if automatic:
                with pytest.raises(ConfigError, match="begin a transaction"):
                    await done(FENCE.enter(connection, "r", 5))
                await done(connection.execute("BEGIN"))
            await done(FENCE.enter(connection, "r", 5))
            # `rollback()` does nothing while autocommit is on.
            await done(connection.execute("ROLLBACK") if automatic else connection.rollback())
            if automatic:
                assert await done(FENCE.look(connection, "r")) is None
        finally:
            await done(connection.close())

    asyncio.run(story(True))
    asyncio.run(story(False))


def test_an_asyncio_driver_that_the_fence_does_not_await_is_refused() -> None:
    async def story() -> None:
        from mysql.connector.aio import MySQLConnection

        with pytest.raises(ConfigError, match="awaits connections of"):
            FENCE.enter(MySQLConnection(), "r", 5)

    asyncio.run(story())


@pytest.mark.server
@pytest.mark.parametrize("name", ["PyMySQL"])
@pytest.mark.parametrize("engine", ["Aria", "MEMORY"])
def test_a_table_that_knows_no_transactions_is_refused(name: str, engine: str, place: Place) -> None:
    async def story() -> None:
        async with DRIVERS[name](place, False) as session:
            await session.run(f"ALTER TABLE lockline_fence ENGINE = {engine}")
            for fence in (SqlFence(), SqlFence(f"{DATABASE}.lockline_fence"), SqlFence(exact=True)):
                for _ in range(2):
                    with pytest.raises(ConfigError, match="knows no transactions"):
                        await enter(session, 5, fence)
                with pytest.raises(ConfigError, match="knows no transactions"):
                    fence.create(session.connection)
            await session.run("ALTER TABLE lockline_fence ENGINE = InnoDB")
            await enter(session, 5)
            await session.rollback()
            assert await mark(name, place) is None

    asyncio.run(story())
