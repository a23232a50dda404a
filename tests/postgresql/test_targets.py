"""What people already have: pools, engines, Django's connection. Their settings are used, and they are left alone."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

import psycopg
import psycopg_pool
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio

import lockline
from lockline import BackendUnavailable, ConfigError

from .conftest import Database

pytestmark = pytest.mark.server


def try_out(target: Any, shared: Database) -> None:
    """A lock through it is one with the same lock by URL."""
    with lockline.connect(target, prefix="own") as client:
        with client.lock("x") as lease, lockline.connect(f"{shared.url}?prefix=own") as other:
            assert other.inspect("x").holders[0].token == lease.token
        assert client.url.startswith("postgresql://lockline@127.0.0.1:")
        with lockline.connect(client.url) as again:
            assert again.url == client.url
            assert again.list() == []


def test_a_pool_of_psycopg(shared: Database) -> None:
    with psycopg_pool.ConnectionPool(shared.url, min_size=1, open=True) as pool:
        try_out(pool, shared)
        with pool.connection() as connection:
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
    with psycopg_pool.ConnectionPool(
        "", kwargs={**psycopg.conninfo.conninfo_to_dict(shared.url), "autocommit": True}, open=False
    ) as pool:
        try_out(pool, shared)


def test_a_connection_of_psycopg(shared: Database) -> None:
    with psycopg.connect(shared.url) as connection:
        try_out(connection, shared)
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_an_engine_of_sqlalchemy_whatever_its_driver(shared: Database, driver: str) -> None:
    engine = sqlalchemy.create_engine(shared.url.replace("postgresql:", f"postgresql+{driver}:"))
    try_out(engine, shared)
    with engine.connect() as connection:
        assert connection.scalar(sqlalchemy.text("SELECT 1")) == 1
    engine.dispose()


def test_what_asyncio_has(shared: Database) -> None:
    async def story() -> None:
        engine = sqlalchemy.ext.asyncio.create_async_engine(shared.url.replace("postgresql:", "postgresql+asyncpg:"))
        pool = psycopg_pool.AsyncConnectionPool(shared.url, open=False)
        for target in (engine, pool):
            async with lockline.aio.connect(target, prefix="own") as client, client.lock("x") as lease:
                assert (await client.inspect("x")).holders[0].token == lease.token
        await engine.dispose()

    asyncio.run(story())


def test_djangos_connection(shared: Database) -> None:
    from django.conf import settings  # type: ignore[import-untyped]
    from django.db.utils import ConnectionHandler  # type: ignore[import-untyped]

    if not settings.configured:
        settings.configure()
    info = psycopg.conninfo.conninfo_to_dict(shared.url)
    handler = ConnectionHandler(
        {
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": info["dbname"],
                "USER": info["user"],
                "HOST": info["host"],
                "PORT": info["port"],
            }
        }
    )
    connection = handler["default"]
    try_out(connection, shared)
    connection.close()


def test_an_engine_that_leads_elsewhere_is_refused_with_what_it_is() -> None:
    with pytest.raises(ConfigError, match="sqlite"):
        lockline.connect(sqlalchemy.create_engine("sqlite://"))
    with pytest.raises(ConfigError, match="MetaData"):
        lockline.connect(sqlalchemy.MetaData())


def test_no_secret_of_theirs_is_shown(shared: Database) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://me:s3cret@h:5433/db?sslmode=require")
    client = lockline.connect(engine, schema="locks", listen="postgresql://me:s3cret@d/db")
    assert client.url == "postgresql://me@h:5433/db?schema=locks&listen=postgresql%3A//me%40d%3A5432/db"
    assert "s3cret" not in repr(client)


@pytest.mark.parametrize(
    ("driver", "connect_args"),
    [("psycopg", {"sslmode": "require"}), ("psycopg2", {"sslmode": "require"}), ("asyncpg", {"ssl": "require"})],
)
def test_the_tls_settings_of_an_engine_are_carried_over(shared: Database, driver: str, connect_args: Any) -> None:
    """This server does not speak TLS, so that a client that locks there has lost them."""
    make = sqlalchemy.ext.asyncio.create_async_engine if driver == "asyncpg" else sqlalchemy.create_engine
    engine: Any = make(shared.url.replace("postgresql:", f"postgresql+{driver}:"), connect_args=connect_args)
    with lockline.connect(engine) as client, pytest.raises(BackendUnavailable, match="does not speak TLS"):
        client.lock("x").acquire(timeout=60)


@pytest.mark.parametrize(
    ("driver", "connect_args"),
    [
        ("asyncpg", {"ssl": ssl.create_default_context()}),
        ("asyncpg", {"ssl": True}),
        ("pg8000", {"ssl_context": True}),
        ("pg8000", {"unix_sock": "/run/postgresql/.s.PGSQL.5432"}),
    ],
)
def test_what_only_the_drivers_of_an_engine_know_is_refused_unless_it_is_said_again(
    shared: Database, driver: str, connect_args: Any
) -> None:
    make = sqlalchemy.ext.asyncio.create_async_engine if driver == "asyncpg" else sqlalchemy.create_engine
    engine: Any = make(shared.url.replace("postgresql:", f"postgresql+{driver}:"), connect_args=connect_args)
    with pytest.raises(ConfigError, match="cannot be carried over"):
        lockline.connect(engine)
    with lockline.connect(engine, tls=False, prefix="said") as client, client.lock("x"):
        pass
    with lockline.connect(engine, tls=True) as client, pytest.raises(BackendUnavailable, match="TLS"):
        client.lock("x").acquire(timeout=60)


def test_an_engine_that_connects_in_its_own_way_is_refused(shared: Database) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(shared.url))
    with pytest.raises(ConfigError, match="way of its own"):
        lockline.connect(engine)


def test_tls_said_beside_any_object_counts(shared: Database) -> None:
    with (
        psycopg.connect(shared.url) as connection,
        lockline.connect(connection, tls=True) as client,
        pytest.raises(BackendUnavailable, match="TLS"),
    ):
        client.lock("x").acquire(timeout=60)
