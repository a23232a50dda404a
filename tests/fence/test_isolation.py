"""Two transactions race for one row, at every isolation level: the stale one loses with StaleToken, nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import psycopg
import pymysql
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio
from psycopg import IsolationLevel
from psycopg.errors import SerializationFailure

from lockline import StaleToken
from lockline.fence import SqlFence

from ..servers.mysql import MysqlServer
from ..servers.postgres import PostgresServer
from ..servers.process import wait_for
from ..tier import sample

pytestmark = pytest.mark.server

LEVELS = [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
FENCE = SqlFence()


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    with psycopg.connect(postgres.url) as connection:
        connection.execute("DROP TABLE IF EXISTS lockline_fence, counter")
        connection.execute("CREATE TABLE counter (value bigint, writer bigint)")
        connection.execute("INSERT INTO counter VALUES (0, 0)")
        FENCE.create(connection)
    return postgres.url


def connected(url: str, level: IsolationLevel) -> psycopg.Connection[Any]:
    connection = psycopg.connect(url)
    connection.isolation_level = level
    return connection


def raced(url: str, level: IsolationLevel, first: int, second: int, *, look_first: bool) -> tuple[Any, Any]:
    """Token `first` enters and writes; `second` enters while that is not yet committed; then `first` commits."""
    with (
        contextlib.closing(connected(url, level)) as one,
        contextlib.closing(connected(url, level)) as two,
        contextlib.closing(psycopg.connect(url, autocommit=True)) as watcher,
    ):
        outcome: list[Any] = []

        def work() -> None:
            try:
                if look_first:
                    # The picture of the database is taken here, before the other commits.
                    two.execute("SELECT value FROM counter").fetchone()
                FENCE.enter(two, "counter", second)
                two.execute("UPDATE counter SET value = value + 1, writer = %s", [second])
                two.commit()
                outcome.append(second)
            except (StaleToken, SerializationFailure) as problem:
                two.rollback()
                outcome.append(problem)

        FENCE.enter(one, "counter", first)
        one.execute("UPDATE counter SET value = value + 1, writer = %s", [first])
        thread = threading.Thread(target=work)
        thread.start()
        # It has to wait for the row: nobody overtakes between check and commit.
        pid = two.info.backend_pid
        waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'"
        wait_for(lambda: watcher.execute(waiting, [pid]).fetchone(), 60, "the second transaction waits for the first")
        assert not outcome
        one.commit()
        thread.join(60)
        assert outcome, "neither in nor refused: a deadlock"
        value = watcher.execute("SELECT value, writer FROM counter").fetchone()
        return outcome[0], value


@pytest.mark.parametrize("look_first", [False, True], ids=["enters first", "looked before"])
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_stale_holder_that_waited_for_the_row_is_told_so(url: str, level: IsolationLevel, look_first: bool) -> None:
    outcome, value = raced(url, level, first=6, second=5, look_first=look_first)
    assert isinstance(outcome, StaleToken)
    assert (outcome.offered, outcome.highest) == (5, 6)
    assert value == (1, 6)


@pytest.mark.parametrize("look_first", [False, True], ids=["enters first", "looked before"])
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_newer_holder_is_never_called_stale(url: str, level: IsolationLevel, look_first: bool) -> None:
    outcome, value = raced(url, level, first=5, second=6, look_first=look_first)
    if level is IsolationLevel.READ_COMMITTED:
        assert outcome == 6
        assert value == (2, 6)
    else:
        # The database's own word for "again": the picture this transaction works on is out of date.
        assert isinstance(outcome, SerializationFailure)
        assert value == (1, 5)
        with psycopg.connect(url) as again:
            FENCE.enter(again, "counter", 6)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_picture_from_before_the_mark_does_not_hide_it(url: str, level: IsolationLevel) -> None:
    with contextlib.closing(connected(url, level)) as old, contextlib.closing(psycopg.connect(url)) as new:
        old.execute("SELECT value FROM counter").fetchone()
        FENCE.enter(new, "counter", 6)
        new.commit()
        with pytest.raises(StaleToken) as refused:
            FENCE.enter(old, "counter", 5)
        assert refused.value.highest == 6
        old.rollback()


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_many_transactions_at_once_never_go_back_and_never_lock_up(url: str, level: IsolationLevel) -> None:
    accepted: list[int] = []
    problems: list[BaseException] = []
    highest: list[Any] = []
    numbers = iter(range(1, sample(61, 201)))
    guard = threading.Lock()

    def work(late: int) -> None:
        try:
            with contextlib.closing(connected(url, level)) as connection:
                while True:
                    with guard:
                        token = next(numbers, None)
                    if token is None:
                        return
                    token = max(1, token - late)
                    for _ in range(50):
                        try:
                            FENCE.enter(connection, "counter", token)
                            connection.execute("UPDATE counter SET value = value + 1, writer = %s", [token])
                            connection.execute("INSERT INTO written (token) VALUES (%s)", [token])
                            connection.commit()
                        except SerializationFailure:
                            connection.rollback()
                            continue
                        except StaleToken as refused:
                            connection.rollback()
                            highest.append((token, refused.highest))
                        else:
                            accepted.append(token)
                        break
        except BaseException as problem:
            problems.append(problem)

    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE written (place bigserial PRIMARY KEY, token bigint)")
    try:
        threads = [threading.Thread(target=work, args=(late,)) for late in (0, 0, 3, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not problems
        assert all(token <= mark for token, mark in highest)
        with psycopg.connect(url) as connection:
            row = connection.execute("SELECT value FROM counter").fetchone()
            assert row == (len(accepted),)
            order = [token for (token,) in connection.execute("SELECT token FROM written ORDER BY place")]
        assert order == sorted(order)
        assert len(order) == len(accepted)
    finally:
        with psycopg.connect(url) as connection:
            connection.execute("DROP TABLE written")


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_sqlalchemy_tells_the_stale_one_too(url: str, level: str) -> None:
    # A pool of one: the second look must not wait for a connection out of it.
    engine = sqlalchemy.create_engine(
        url.replace("postgresql:", "postgresql+psycopg:"),
        isolation_level=level,
        pool_size=1,
        max_overflow=0,
        pool_timeout=60,
    )
    with engine.connect() as old, psycopg.connect(url) as new:
        old.execute(sqlalchemy.text("SELECT value FROM counter")).fetchone()
        FENCE.enter(new, "counter", 6)
        new.commit()
        with pytest.raises(StaleToken):
            FENCE.enter(old, "counter", 5)
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg2", "pg8000"])
def test_sqlalchemy_tells_it_with_every_driver_although_its_pool_is_empty(url: str, driver: str) -> None:
    engine = sqlalchemy.create_engine(
        url.replace("postgresql:", f"postgresql+{driver}:"),
        isolation_level="REPEATABLE READ",
        pool_size=1,
        max_overflow=0,
        pool_timeout=60,
    )
    with engine.connect() as old, psycopg.connect(url) as new:
        old.execute(sqlalchemy.text("SELECT value FROM counter")).fetchone()
        FENCE.enter(new, "counter", 6)
        new.commit()
        with pytest.raises(StaleToken):
            FENCE.enter(old, "counter", 5)
    engine.dispose()


def test_sqlalchemy_with_asyncpg_tells_it_although_its_pool_is_empty(url: str) -> None:
    async def story() -> None:
        engine = sqlalchemy.ext.asyncio.create_async_engine(
            url.replace("postgresql:", "postgresql+asyncpg:"),
            isolation_level="REPEATABLE READ",
            pool_size=1,
            max_overflow=0,
            pool_timeout=60,
        )
        async with engine.connect() as old, await psycopg.AsyncConnection.connect(url) as new:
            await old.execute(sqlalchemy.text("SELECT value FROM counter"))
            await FENCE.enter(new, "counter", 6)
            await new.commit()
            with pytest.raises(StaleToken):
                await FENCE.enter(old, "counter", 5)
        await engine.dispose()

    asyncio.run(story())


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_a_connection_that_a_pool_of_sqlalchemy_has_lent_enters_too(url: str, driver: str) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
    with contextlib.closing(engine.raw_connection()) as lent:
        FENCE.enter(lent, "counter", 6)
        lent.commit()
        with pytest.raises(StaleToken):
            FENCE.enter(lent, "counter", 5)
    engine.dispose()


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_an_awaited_connection_tells_the_stale_one_too(url: str, level: IsolationLevel) -> None:
    async def story() -> None:
        old = await psycopg.AsyncConnection.connect(url)
        await old.set_isolation_level(level)
        await old.execute("SELECT value FROM counter")
        async with await psycopg.AsyncConnection.connect(url) as new:
            await FENCE.enter(new, "counter", 6)
        with pytest.raises(StaleToken):
            await FENCE.enter(old, "counter", 5)
        await old.close()

    asyncio.run(story())


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_mysql_refuses_the_stale_one_at_every_level(mysql: MysqlServer, level: str) -> None:
    options: dict[str, Any] = {"host": "127.0.0.1", "port": mysql.port, "user": mysql.user}
    with contextlib.closing(pymysql.connect(**options)) as admin, admin.cursor() as cursor:
        cursor.execute("DROP DATABASE IF EXISTS races")
        cursor.execute("CREATE DATABASE races")
    options["database"] = "races"
    with contextlib.closing(pymysql.connect(**options)) as old, contextlib.closing(pymysql.connect(**options)) as new:
        FENCE.create(new)
        with old.cursor() as cursor:
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            cursor.execute("SELECT * FROM lockline_fence")
            if level == "SERIALIZABLE":
                old.commit()  # a read locks there, and would keep the newer one out until it ends
        FENCE.enter(new, "counter", 6)
        outcome: list[BaseException] = []

        def work() -> None:
            try:
                FENCE.enter(old, "counter", 5)
            except BaseException as problem:
                outcome.append(problem)

        thread = threading.Thread(target=work)
        thread.start()
        # It has to wait for the row.
        waiting = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        with contextlib.closing(pymysql.connect(**options, autocommit=True)) as watcher, watcher.cursor() as cursor:
            wait_for(lambda: cursor.execute(waiting) and cursor.fetchone() != (0,), 60, "a transaction that waits")
        assert not outcome
        new.commit()
        thread.join(60)
        assert isinstance(outcome[0], StaleToken)
        assert outcome[0].highest == 6
        old.rollback()
