"""The fence with other people's drivers and frameworks, each at a real server."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from lockline import ConfigError, StaleToken
from lockline.fence import SqlFence

from ..servers.mysql import MysqlServer
from ..servers.postgres import PostgresServer
from .drivers import need_mysqlclient

pytestmark = pytest.mark.server


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    with psycopg.connect(postgres.url) as connection:
        connection.execute("DROP TABLE IF EXISTS lockline_fence")
    return postgres.url


def a_database(server: MysqlServer) -> dict[str, Any]:
    import pymysql

    options: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": server.user}
    with contextlib.closing(pymysql.connect(**options)) as connection:
        connection.cursor().execute("DROP DATABASE IF EXISTS drivers")
        connection.cursor().execute("CREATE DATABASE drivers")
    return options


@pytest.fixture(params=["psycopg2", "pg8000", "mysql.connector"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[[], Any]]:
    if request.param == "mysql.connector":
        import mysql.connector

        options = a_database(request.getfixturevalue("mysql"))
        yield lambda: mysql.connector.connect(**options, database="drivers")
    elif request.param == "psycopg2":
        import psycopg2

        where = request.getfixturevalue("url")
        yield lambda: psycopg2.connect(where)
    else:
        import pg8000.dbapi

        request.getfixturevalue("url")
        port = request.getfixturevalue("postgres").port
        yield lambda: pg8000.dbapi.connect(user="lockline", host="127.0.0.1", port=port, database="postgres")


def test_another_driver_keeps_the_rule(connect: Callable[[], Any]) -> None:
    fence, exact = SqlFence(), SqlFence(exact=True)
    with contextlib.closing(connect()) as connection:
        fence.create(connection)
        connection.commit()
        for token in (5, 5, 6):
            fence.enter(connection, "r", token)
        connection.commit()
        with pytest.raises(StaleToken) as refused:
            fence.enter(connection, "r", 5)
        assert refused.value.highest == 6
        connection.rollback()
        with pytest.raises(ConfigError):
            SqlFence("not_there").enter(connection, "r", 5)
        connection.rollback()
        exact.enter(connection, "x", "a")
        exact.enter(connection, "x", "b")
        with pytest.raises(StaleToken):
            exact.check(connection, "x", "a")
        connection.rollback()
        connection.autocommit = True
        with pytest.raises(ConfigError, match="begin a transaction"):
            fence.enter(connection, "r", 7)
        assert fence.look(connection, "r") == (6, "")


def test_a_driver_that_cannot_open_a_second_connection_is_given_one(url: str, postgres: PostgresServer) -> None:
    import pg8000.dbapi

    def opened() -> Any:
        return pg8000.dbapi.connect(user="lockline", host="127.0.0.1", port=postgres.port, database="postgres")

    def story(fence: SqlFence) -> None:
        with contextlib.closing(opened()) as old, psycopg.connect(url) as new:
            cursor = old.cursor()
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            old.commit()
            cursor.execute("SELECT 1")
            fence.create(new)
            fence.enter(new, "r", 6)
            new.commit()
            fence.enter(old, "r", 5)

    with pytest.raises(StaleToken):
        story(SqlFence(fresh=lambda: contextlib.closing(opened())))
    with pytest.raises(pg8000.dbapi.DatabaseError, match="40001"):
        story(SqlFence())


def test_asyncpg_under_sqlalchemy(url: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import create_async_engine

    async def story() -> None:
        engine = create_async_engine(
            url.replace("postgresql:", "postgresql+asyncpg:"), isolation_level="REPEATABLE READ"
        )
        fence = SqlFence()
        async with engine.begin() as connection:
            await fence.create(connection)
        async with engine.connect() as old:
            await old.execute(text("SELECT count(*) FROM lockline_fence"))
            async with engine.begin() as new:
                await fence.enter(new, "r", 6)
            with pytest.raises(StaleToken):
                await fence.enter(old, "r", 5)
            await old.rollback()
            with pytest.raises(ConfigError):
                await SqlFence("not_there").enter(old, "r", 5)
        await engine.dispose()

    asyncio.run(story())


DJANGO = """
import django, sys
from django.conf import settings

postgresql = {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "lockline", "HOST": "127.0.0.1"}
mysql = {"ENGINE": "django.db.backends.mysql", "NAME": "drivers", "USER": sys.argv[3], "HOST": "127.0.0.1"}
settings.configure(DATABASES={
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db"},
    "served": {**postgresql, "PORT": sys.argv[1]},
    "mysqlclient": {**mysql, "PORT": sys.argv[2]},
})
django.setup()
from django.db import connection, connections, transaction
from lockline import ConfigError, StaleToken
from lockline.fence import SqlFence

fence = SqlFence()
for alias in connections:
    with transaction.atomic(using=alias):
        fence.create(connections[alias])
        fence.enter(connections[alias], "r", 6)
    try:
        with transaction.atomic(using=alias):
            fence.enter(connections[alias], "r", 5)
        print("not refused")
    except StaleToken:
        print(alias, "stale")
    try:
        fence.enter(connections[alias], "r", 7)
        print("not refused")
    except ConfigError:
        print(alias, "no transaction")
    connections[alias].set_autocommit(False)
    fence.enter(connections[alias], "r", 8)
    connections[alias].rollback()
    connections[alias].set_autocommit(True)
    assert fence.look(connections[alias], "r") == (6, "")
with transaction.atomic():
    fence.enter(connection, "r", 7)
connections.close_all()
"""


def test_django_enters_with_its_own_connection(
    url: str, postgres: PostgresServer, mysql: MysqlServer, tmp_path: Path
) -> None:
    need_mysqlclient()
    a_database(mysql)
    ran = subprocess.run(
        [sys.executable, "-c", DJANGO, str(postgres.port), str(mysql.port), mysql.user],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == [
        "default stale",
        "default no transaction",
        "served stale",
        "served no transaction",
        "mysqlclient stale",
        "mysqlclient no transaction",
    ]
