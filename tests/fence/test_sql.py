"""Rows behind a fence, on every kind of connection."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lockline
from lockline import BackendUnavailable, ConfigError, StaleToken
from lockline.fence import Offer, SqlFence, SqlMarks

from ..servers.mysql import MysqlServer
from ..servers.postgres import PostgresServer
from ..tier import sample
from .test_rule import BAD_TOKENS

KINDS = ["sqlite", "sqlite-rows", "plain-sql", "sqlalchemy-sqlite", "sqlalchemy-session"]
SERVED = ["psycopg", "psycopg-dict", "sqlalchemy-psycopg", "pymysql", "pymysql-dict", "sqlalchemy-pymysql"]
AWAITED = ["aiosqlite", "sqlalchemy-aiosqlite", "sqlalchemy-async-session"]
AWAITED_SERVED = ["psycopg-async", "sqlalchemy-psycopg-async"]


class Store:
    """A table of fences, a fence for it, and a way to connect."""

    def __init__(self, connect: Callable[[], Any], **options: Any) -> None:
        self.connect = connect
        self.fence = SqlFence(**options)


def names(kinds: list[str], served: list[str]) -> list[Any]:
    return [*kinds, *(pytest.param(kind, marks=pytest.mark.server) for kind in served)]


def a_mysql(request: pytest.FixtureRequest) -> dict[str, Any]:
    import pymysql

    server: MysqlServer = request.getfixturevalue("mysql")
    options = {"host": "127.0.0.1", "port": server.port, "user": server.user}
    with contextlib.closing(pymysql.connect(**options)) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS fences")
        cursor.execute("DROP TABLE IF EXISTS fences.lockline_fence")
    return {**options, "database": "fences"}


def a_postgres(request: pytest.FixtureRequest) -> str:
    import psycopg

    server: PostgresServer = request.getfixturevalue("postgres")
    with psycopg.connect(server.url) as connection:
        connection.execute("DROP TABLE IF EXISTS lockline_fence")
        connection.execute("DROP TABLE IF EXISTS counter")
    return server.url


@pytest.fixture(params=names(KINDS, SERVED))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on each kind of connection."""
    with opened(request.param, request, tmp_path) as store:
        yield store


@pytest.fixture(params=names(sample(["sqlite", "plain-sql"], KINDS), sample(["psycopg", "pymysql"], SERVED)))
def dialect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store of each dialect, for what the connection does not decide."""
    with opened(request.param, request, tmp_path) as store:
        yield store


@contextlib.contextmanager
def opened(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    path = str(tmp_path / "data.db")
    engine = None
    if kind == "sqlite":
        store = Store(lambda: sqlite3.connect(path))
    elif kind == "sqlite-rows":

        def with_rows() -> sqlite3.Connection:
            connection = sqlite3.connect(path)
            connection.row_factory = sqlite3.Row
            return connection

        store = Store(with_rows)
    elif kind == "plain-sql":
        store = Store(lambda: sqlite3.connect(path), dialect="other")
    elif kind == "psycopg":
        import psycopg

        url = a_postgres(request)
        store = Store(lambda: psycopg.connect(url))
    elif kind == "psycopg-dict":
        import psycopg
        from psycopg.rows import dict_row

        url = a_postgres(request)
        store = Store(lambda: psycopg.connect(url, row_factory=dict_row))
    elif kind.startswith("pymysql"):
        import pymysql.cursors

        options = a_mysql(request)
        cursor = pymysql.cursors.DictCursor if kind.endswith("dict") else pymysql.cursors.Cursor
        store = Store(lambda: pymysql.connect(**options, cursorclass=cursor))
    else:
        import sqlalchemy
        from sqlalchemy.orm import Session

        if kind.endswith("psycopg"):
            engine = sqlalchemy.create_engine(a_postgres(request).replace("postgresql:", "postgresql+psycopg:"))
        elif kind.endswith("pymysql"):
            mysql = a_mysql(request)
            engine = sqlalchemy.create_engine(f"mysql+pymysql://{mysql['user']}@127.0.0.1:{mysql['port']}/fences")
        else:
            engine = sqlalchemy.create_engine(f"sqlite:///{path}")
        found = engine
        store = Store((lambda: Session(found)) if kind.endswith("session") else found.connect)
    with contextlib.closing(store.connect()) as connection:
        store.fence.create(connection)
        connection.commit()
    yield store
    if engine is not None:
        engine.dispose()


def test_a_holder_enters_often_and_an_older_one_never_again(store: Store) -> None:
    with contextlib.closing(store.connect()) as connection:
        for token in (5, 5, 6, 6):
            store.fence.enter(connection, "orders/42", token)
            store.fence.check(connection, "orders/42", token)
        connection.commit()
        with pytest.raises(StaleToken) as refused:
            store.fence.enter(connection, "orders/42", 5)
        assert (refused.value.resource, refused.value.offered, refused.value.highest) == ("orders/42", 5, 6)
        connection.rollback()
        assert store.fence.look(connection, "orders/42") == (6, "")
        store.fence.enter(connection, "Orders/42", 1)
        store.fence.enter(connection, "orders/42", 1, lock="another lock")
        connection.commit()


def test_a_lease_passes_and_its_number_alone_does_not(store: Store) -> None:
    with (
        lockline.connect("memory:") as client,
        client.lock("fenced") as lease,
        contextlib.closing(store.connect()) as connection,
    ):
        store.fence.enter(connection, "r", lease)
        store.fence.enter(connection, "r", lease.sequencer())
        connection.commit()
        with pytest.raises(StaleToken, match="same one"):
            store.fence.enter(connection, "r", lease.token, lock="fenced")
        connection.rollback()
        with pytest.raises(StaleToken, match="same one"):
            store.fence.enter(connection, "r", Offer("fenced", lease.token, "someone else"))
        connection.rollback()


def test_what_was_rolled_back_left_no_mark(dialect: Store) -> None:
    with contextlib.closing(dialect.connect()) as connection:
        dialect.fence.enter(connection, "r", 9)
        connection.rollback()
        assert dialect.fence.look(connection, "r") is None
        connection.rollback()
        dialect.fence.enter(connection, "r", 1)
        connection.commit()
        assert dialect.fence.look(connection, "r") == (1, "")


def test_the_largest_tokens_are_told_apart(dialect: Store) -> None:
    with contextlib.closing(dialect.connect()) as connection:
        dialect.fence.enter(connection, "r", 2**63 - 2)
        dialect.fence.enter(connection, "r", 2**63 - 1)
        with pytest.raises(StaleToken):
            dialect.fence.enter(connection, "r", 2**63 - 2)


def test_strange_names_are_names(dialect: Store) -> None:
    with contextlib.closing(dialect.connect()) as connection:
        for number, name in enumerate(
            ("'; DROP TABLE x; --", "%s", ":name", "{token}", "ü" * 256, "a ", "a", "A", "?"), 1
        ):
            dialect.fence.enter(connection, name, number)
        connection.commit()
        assert dialect.fence.look(connection, "a ") == (6, "")
        assert dialect.fence.look(connection, "A") == (8, "")


def test_the_exact_rule_in_a_table(dialect: Store) -> None:
    fence = SqlFence(exact=True, dialect=dialect.fence._dialect)
    with contextlib.closing(dialect.connect()) as connection:
        with pytest.raises(StaleToken, match="not entered"):
            fence.check(connection, "r", "job-9")
        connection.rollback()
        fence.enter(connection, "r", "job-9")
        fence.check(connection, "r", "job-9")
        fence.enter(connection, "r", "job-1")
        connection.commit()
        with pytest.raises(StaleToken) as refused:
            fence.check(connection, "r", "job-9")
        assert (refused.value.offered, refused.value.highest) == ("job-9", "job-1")
        connection.rollback()
        fence.check(connection, "r", "job-1")
        connection.commit()


@pytest.mark.parametrize("token", BAD_TOKENS, ids=repr)
def test_a_bad_token_does_no_io(token: object) -> None:
    class NoConnection:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("it was used")

    with pytest.raises(ConfigError):
        SqlFence().enter(NoConnection(), "r", token)
    with pytest.raises(ConfigError):
        SqlFence().enter(NoConnection(), "", 5)


def test_what_is_no_connection_or_no_table_name_is_a_config_error() -> None:
    with pytest.raises(ConfigError):
        SqlFence().enter(object(), "r", 5)
    for name in ("", "a b", "a;b", "a.b.c", "1a", None, 'a"b'):
        with pytest.raises(ConfigError):
            SqlFence(name)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        SqlFence(dialect="dbase")
    with pytest.raises(ConfigError):
        SqlFence().ddl("dbase")


OTHER_SHAPES = [
    "CREATE TABLE lockline_fence (resource {text}, lock_name {text}, token {text}, grant_id {text}, PRIMARY KEY (resource, lock_name))",
    "CREATE TABLE lockline_fence (resource {text}, lock_name {text}, token {double}, grant_id {text}, PRIMARY KEY (resource, lock_name))",
    "CREATE TABLE lockline_fence (resource {text}, lock_name {text}, token BIGINT, grant_id {text})",
    "CREATE TABLE lockline_fence (resource {text}, token BIGINT, grant_id {text}, PRIMARY KEY (resource))",
    "CREATE TABLE lockline_fence (id {text} PRIMARY KEY)",
    "CREATE TABLE lockline_fence (resource {text}, lock_name {text}, token BIGINT, grant_id {text}, more {text} NOT NULL, PRIMARY KEY (resource, lock_name))",
    "CREATE TABLE lockline_fence (resource {text} PRIMARY KEY, lock_name {text}, token BIGINT, grant_id {text})",
    "CREATE VIEW lockline_fence AS SELECT 'r' AS resource, 'l' AS lock_name, 1 AS token, 'g' AS grant_id",
]  # fmt: skip


@pytest.mark.parametrize("ddl", OTHER_SHAPES)
@pytest.mark.parametrize("kind", names(["sqlite"], ["psycopg"]))
def test_a_table_of_another_shape_is_a_config_error_and_stays_empty(
    ddl: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if kind == "sqlite":
        connect: Callable[[], Any] = lambda: sqlite3.connect(tmp_path / "data.db")  # noqa: E731
    else:
        import psycopg

        url = a_postgres(request)
        connect = lambda: psycopg.connect(url)  # noqa: E731
    with contextlib.closing(connect()) as connection:
        connection.execute(ddl.format(text="text", double="double precision"))
        connection.commit()
        for _ in range(2):
            with pytest.raises(ConfigError, match="another shape"):
                SqlFence().enter(connection, "r", 5)
            connection.rollback()
        if "VIEW" not in ddl:
            assert connection.execute("SELECT count(*) FROM lockline_fence").fetchone()[0] == 0
        connection.rollback()
        connection.execute("DROP VIEW lockline_fence" if "VIEW" in ddl else "DROP TABLE lockline_fence")
        connection.commit()


def test_no_table_is_a_config_error_that_names_the_cure(dialect: Store) -> None:
    with contextlib.closing(dialect.connect()) as connection:
        with pytest.raises(ConfigError, match="create"):
            SqlFence("not_there", dialect=dialect.fence._dialect).enter(connection, "r", 5)
        connection.rollback()


@pytest.mark.server
def test_a_narrow_token_column_is_a_config_error(postgres: PostgresServer) -> None:
    import psycopg

    with contextlib.closing(psycopg.connect(postgres.url)) as connection:
        connection.execute(
            "CREATE TEMP TABLE narrow (resource text, lock_name text, token int, grant_id text, PRIMARY KEY (resource, lock_name))"
        )
        with pytest.raises(ConfigError, match="another shape"):
            SqlFence("narrow").enter(connection, "r", 2**40)


def test_a_connection_that_commits_by_itself_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "data.db", isolation_level=None)) as connection:
        SqlFence().create(connection)
        with pytest.raises(ConfigError, match="begin a transaction"):
            SqlFence().enter(connection, "r", 5)
        assert SqlFence().look(connection, "r") is None
        connection.execute("BEGIN")
        SqlFence().enter(connection, "r", 5)
        connection.execute("COMMIT")
        assert SqlFence().look(connection, "r") == (5, "")


@pytest.mark.server
def test_a_served_connection_that_commits_by_itself_is_refused(request: pytest.FixtureRequest) -> None:
    import psycopg
    import pymysql
    import sqlalchemy

    fence = SqlFence()
    url = a_postgres(request)
    with contextlib.closing(psycopg.connect(url, autocommit=True)) as connection:
        fence.create(connection)
        with pytest.raises(ConfigError, match="begin a transaction"):
            fence.enter(connection, "r", 5)
        with connection.transaction():
            fence.enter(connection, "r", 5)
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    automatic = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    with automatic, pytest.raises(ConfigError, match="begin a transaction"):
        fence.enter(automatic, "r", 6)
    engine.dispose()
    with contextlib.closing(pymysql.connect(**a_mysql(request), autocommit=True)) as mine:
        fence.create(mine)
        with pytest.raises(ConfigError, match="begin a transaction"):
            fence.enter(mine, "r", 5)
        mine.begin()
        fence.enter(mine, "r", 5)
        mine.commit()
        assert fence.look(mine, "r") == (5, "")


@pytest.mark.parametrize("before", [None, 5, 6], ids=["no mark", "a lower mark", "its own mark"])
def test_sqlite_lets_nobody_overtake_between_check_and_commit(before: int | None, tmp_path: Path) -> None:
    path = tmp_path / "data.db"
    fence = SqlFence()
    with contextlib.closing(sqlite3.connect(path)) as one, contextlib.closing(sqlite3.connect(path, timeout=0)) as two:
        one.execute("PRAGMA journal_mode = WAL").fetchone()
        fence.create(one)
        if before is not None:
            fence.enter(one, "r", before)
        one.commit()
        fence.enter(one, "r", 6)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            fence.enter(two, "r", 7)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            two.execute("CREATE TABLE written_past_the_fence (x)")
        two.rollback()
        one.commit()
        fence.enter(two, "r", 7)
        two.commit()
        with pytest.raises(StaleToken):
            fence.enter(one, "r", 6)


def test_the_fence_flushes_nothing_of_a_session(tmp_path: Path) -> None:
    import sqlalchemy
    from sqlalchemy.orm import DeclarativeBase, Session, mapped_column

    class Base(DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        id = mapped_column(sqlalchemy.Integer, primary_key=True)
        status = mapped_column(sqlalchemy.String)

    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'data.db'}")
    Base.metadata.create_all(engine)
    fence = SqlFence()
    with Session(engine) as session:
        fence.create(session)
        session.commit()
        session.add(Order(id=1, status="new"))
        fence.enter(session, "orders/1", 5)
        assert session.new
        session.commit()
    with Session(engine) as session:
        session.get(Order, 1).status = "late"  # type: ignore[union-attr]
        with pytest.raises(StaleToken):
            fence.enter(session, "orders/1", 4)
    with Session(engine) as session:
        assert session.get(Order, 1).status == "new"  # type: ignore[union-attr]
    engine.dispose()


@contextlib.asynccontextmanager
async def awaited(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Callable[[], Any]]:
    path = tmp_path / "data.db"
    if kind == "aiosqlite":
        import aiosqlite

        yield lambda: aiosqlite.connect(path)
    elif kind == "psycopg-async":
        import psycopg

        url = a_postgres(request)

        @contextlib.asynccontextmanager
        async def connect() -> AsyncIterator[Any]:
            connection = await psycopg.AsyncConnection.connect(url)
            try:
                yield connection
            finally:
                await connection.close()

        yield connect
    else:
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

        url = f"sqlite+aiosqlite:///{path}"
        if "psycopg" in kind:
            url = a_postgres(request).replace("postgresql:", "postgresql+psycopg:")
        engine = create_async_engine(url)
        try:
            yield (lambda: AsyncSession(engine)) if kind.endswith("session") else engine.connect
        finally:
            await engine.dispose()


@pytest.mark.parametrize("kind", names(AWAITED, AWAITED_SERVED))
def test_the_same_awaited(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    async def story() -> None:
        fence = SqlFence()
        async with awaited(kind, request, tmp_path) as connect:
            async with connect() as connection:
                await fence.create(connection)
                await connection.commit()
            async with connect() as connection:
                await fence.enter(connection, "r", 5)
                await fence.check(connection, "r", 5)
                await connection.commit()
                await fence.enter(connection, "r", 7)
                await connection.rollback()
                assert await fence.look(connection, "r") == (5, "")
                await connection.rollback()
                with pytest.raises(StaleToken):
                    await fence.enter(connection, "r", 4)
                await connection.rollback()
                with pytest.raises(ConfigError):
                    await SqlFence("not_there").enter(connection, "r", 4)
                await connection.rollback()
                with pytest.raises(ConfigError):
                    fence.enter(connection, "r", 0)

    asyncio.run(story())


@pytest.mark.parametrize("kind", names(["sqlite"], ["postgresql"]))
def test_marks_in_a_table_let_one_in_at_a_time(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    source = str(tmp_path / "marks.db") if kind == "sqlite" else a_postgres(request)
    marks, others = SqlMarks(source), SqlMarks(source)
    offer = Offer("l", 5, "g")
    leave = marks.admit("r", offer, writes=True, patience=1)
    with pytest.raises(BackendUnavailable, match="stayed inside"):
        others.admit("r", Offer("l", 6, ""), writes=True, patience=0.05)
    assert others.look("r", "l") == (5, "g"), "the mark lasts before anybody is let in"
    leave()
    others.admit("r", Offer("l", 6, ""), writes=True, patience=1)()
    with pytest.raises(StaleToken):
        marks.admit("r", offer, writes=True, patience=1)
    marks.close()
    others.close()


def test_marks_in_what_is_no_database_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello " * 1000)
    with pytest.raises(ConfigError, match="no SQLite file"):
        SqlMarks(text).admit("r", Offer("l", 5, ""), writes=True, patience=1)
    assert text.read_text() == "hello " * 1000
    for source in ("", "sqlite://", "mongodb://x", str(tmp_path / "no" / "such.db")):
        with pytest.raises(ConfigError):
            SqlMarks(source)
