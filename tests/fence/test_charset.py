"""One mark for one name, whatever character set a connection has."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import psycopg
import pymysql
import pytest
import redis
import sqlalchemy

from lockline import ConfigError, StaleToken
from lockline.fence import RedisFence, SqlFence

from ..servers.mysql import MysqlServer
from ..servers.postgres import PostgresServer
from ..servers.redis import RedisServer

pytestmark = pytest.mark.server

NAME = "Zürich"
FENCE = SqlFence()


Connect = Callable[[str], Any]


@pytest.fixture
def connect(mysql: MysqlServer) -> Connect:
    options: dict[str, Any] = {"host": "127.0.0.1", "port": mysql.port, "user": mysql.user}
    with contextlib.closing(pymysql.connect(**options)) as connection:
        connection.cursor().execute("CREATE OR REPLACE DATABASE charsets")
    return lambda charset: pymysql.connect(**options, database="charsets", charset=charset)


def test_an_older_token_is_refused_over_a_connection_of_another_charset(connect: Connect) -> None:
    with contextlib.closing(connect("utf8mb4")) as one, contextlib.closing(connect("latin1")) as two:
        FENCE.create(one)
        FENCE.enter(one, NAME, 9)
        one.commit()
        with pytest.raises(StaleToken):
            FENCE.enter(two, NAME, 5)
        two.rollback()
        FENCE.enter(two, NAME, 10)
        two.commit()
        with pytest.raises(StaleToken):
            FENCE.enter(one, NAME, 9)
        mark = FENCE.look(one, NAME)
        assert mark is not None
        assert mark.token == 10


def test_so_it_is_over_sqlalchemy(connect: Connect) -> None:
    engines = [
        sqlalchemy.create_engine("mysql+pymysql://", creator=partial(connect, charset))
        for charset in ("utf8mb4", "latin1")
    ]
    with engines[0].begin() as one:
        FENCE.create(one)
    with engines[0].begin() as one:
        FENCE.enter(one, NAME, 9)
    with pytest.raises(StaleToken), engines[1].begin() as two:
        FENCE.enter(two, NAME, 5)
    for engine in engines:
        engine.dispose()


@pytest.mark.parametrize("decoded", [True, False])
def test_so_it_is_for_a_lock_on_redis(
    redis_server: RedisServer, decoded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # hiredis writes every text in UTF-8, and redis-py without it in the client's encoding.
    monkeypatch.setattr("redis.connection.HIREDIS_AVAILABLE", False)
    key = f"balance-{decoded}"
    with (
        redis.Redis(port=redis_server.port) as one,
        redis.Redis(port=redis_server.port, encoding="latin-1", decode_responses=decoded) as two,
    ):
        RedisFence(one).enter(key, 9, lock=NAME)
        with pytest.raises(StaleToken):
            RedisFence(two).enter(key, 5, lock=NAME)
        mark = RedisFence(two).look(key, lock=NAME)
        assert mark is not None
        assert mark.token == 9


def test_a_prefix_on_redis_that_encodings_would_write_differently_is_refused() -> None:
    with redis.Redis() as client, pytest.raises(ConfigError, match="ASCII"):
        RedisFence(client, prefix="Zürich:")


def test_so_it_is_in_a_postgresql_database_that_converts_nothing(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE bytes TEMPLATE template0 ENCODING 'SQL_ASCII'")
    url = postgres.url.removesuffix("/postgres") + "/bytes"
    with psycopg.connect(url, client_encoding="utf8") as one, psycopg.connect(url, client_encoding="latin1") as two:
        FENCE.create(one)
        FENCE.enter(one, NAME, 9)
        one.commit()
        with pytest.raises(StaleToken):
            FENCE.enter(two, NAME, 5)
        two.rollback()
        FENCE.enter(two, NAME, 10)
        two.commit()
        mark = FENCE.look(one, NAME)
        assert mark is not None
        assert mark.token == 10
        one.rollback()
        # Without any encoding, as the database proposes it.
        with psycopg.connect(url) as three, pytest.raises(StaleToken):
            FENCE.enter(three, NAME, 9)
