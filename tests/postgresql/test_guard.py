"""`lease.guard(connection)`: lock and data agree in one transaction, also when the holder was frozen."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pg8000.dbapi
import psycopg
import psycopg2
import pytest
import sqlalchemy

import lockline
from lockline import ConfigError
from tests.guarded import freeze_a_holder
from tests.tier import sample

from .conftest import Database

pytestmark = pytest.mark.server


@pytest.fixture
def account(shared: Database) -> Iterator[str]:
    """A row that is read, thought about, and written."""
    shared.ask("DROP TABLE IF EXISTS account")
    shared.ask("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)")
    shared.ask("INSERT INTO account VALUES (1, 100)")
    yield shared.url
    shared.ask("DROP TABLE account")


def run_out(database: Database, lease: lockline.Lease) -> None:
    """The lease's time is over for the database. Nobody comes and nothing removes the claim: its client does not know of it."""
    over = "UPDATE lockline.claim SET expires = clock_timestamp() WHERE ticket = %s RETURNING 1"
    assert database.ask(over, lease.token) == [(1,)]


def balance(database: Database) -> int:
    return int(database.ask("SELECT balance FROM account")[0][0])


@pytest.mark.parametrize(
    ("guard", "said", "left"),
    # Without a guard the update is lost: no promise, but why there is a guard.
    [
        *sample([], [("never", "committed", 101)]),
        ("first", "refused: DatabaseError", 110),
        ("last", "refused: LeaseLost", 110),
    ],
)
def test_a_frozen_holder_loses_the_next_ones_update_unless_it_is_guarded(
    account: str, shared: Database, guard: str, said: str, left: int
) -> None:
    """It reads 100 and is frozen; its lease runs out, the next holder adds 10; then it adds 1 to what it has read.

    Guarded before its first read its commit fails, late as it is; afterwards its own deadline tells it already.
    """
    engine_url = account.replace("postgresql:", "postgresql+psycopg:")
    over = "UPDATE lockline.claim SET expires = clock_timestamp()"
    # The last one is told by its own clock, which has to come to the deadline.
    assert freeze_a_holder(account, engine_url, guard, run_out=guard != "last" and (lambda: shared.ask(over))) == said
    assert balance(shared) == left


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_lease_that_is_renewed_meanwhile_commits_at_every_level(account: str, shared: Database, level: str) -> None:
    with lockline.connect(account) as client, client.lock("account/1", ttl=30) as lease:
        with psycopg.connect(account) as mine:
            mine.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
            mine.execute("UPDATE account SET balance = balance + 1")
            lease.guard(mine)
            first = shared.ask("SELECT expires FROM lockline.claim WHERE ticket = %s", lease.token)
            lease.extend(30)
            assert shared.ask("SELECT expires FROM lockline.claim WHERE ticket = %s", lease.token) != first
        assert lease.valid
    assert balance(shared) == 101


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_after_an_eviction_the_commit_fails_at_every_level(account: str, shared: Database, level: str) -> None:
    with lockline.connect(account) as client, lockline.connect(account) as operator:
        lease = client.lock("account/1").acquire()
        with psycopg.connect(account) as mine:
            mine.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
            mine.execute("UPDATE account SET balance = balance + 1")
            lease.guard(mine)
            operator.evict("account/1")
            with pytest.raises(psycopg.Error) as caught:
                mine.commit()
        assert caught.value.sqlstate in ("LL003", "40001")
    assert balance(shared) == 100
    assert shared.ask("SELECT * FROM lockline.guard") == []


def test_a_lease_that_ran_out_fails_the_commit_even_if_nobody_came(account: str, shared: Database) -> None:
    with lockline.connect(account) as client, psycopg.connect(account) as mine:
        lease = client.lock("account/1", ttl=600, renew=False).acquire()
        lease.guard(mine)
        mine.execute("UPDATE account SET balance = balance + 1")
        run_out(shared, lease)
        with pytest.raises(psycopg.Error, match="gone"):
            mine.commit()
        # It was refused for its time alone: the claim is still there.
        assert shared.ask("SELECT 1 FROM lockline.claim WHERE ticket = %s", lease.token) == [(1,)]
    assert balance(shared) == 100


def test_from_the_check_to_the_commit_the_next_holder_waits(account: str, shared: Database) -> None:
    with lockline.connect(account) as client, lockline.connect(account) as other, psycopg.connect(account) as mine:
        lease = client.lock("account/1", ttl=600, renew=False).acquire()
        lease.guard(mine)
        mine.execute("UPDATE account SET balance = balance + 1")
        # The check of the commit, and then no commit yet: as long as this stands still.
        mine.execute("SET CONSTRAINTS ALL IMMEDIATE")
        run_out(shared, lease)
        seen: list[int] = []

        def next_one() -> None:
            with other.lock("account/1", timeout=60):
                seen.append(balance(shared))

        thread = threading.Thread(target=next_one)
        thread.start()
        thread.join(0.7)
        assert not seen
        mine.commit()
        thread.join(60)
        assert seen == [101]


def test_a_guard_holds_nobody_up_before_the_commit(account: str, shared: Database) -> None:
    with lockline.connect(account) as client, lockline.connect(account) as other, psycopg.connect(account) as mine:
        lease = client.lock("account/1", ttl=600, renew=False).acquire()
        lease.guard(mine)
        run_out(shared, lease)
        other.lock("account/1", timeout=60).acquire().release()
        mine.rollback()


def test_outside_a_transaction_it_is_refused(account: str) -> None:
    with lockline.connect(account) as client, client.lock("account/1") as lease:
        with psycopg.connect(account, autocommit=True) as mine, pytest.raises(ConfigError, match="transaction"):
            lease.guard(mine)
        with pytest.raises(ConfigError, match="connection"):
            lease.guard()


def test_in_a_session_that_calls_no_triggers_it_is_refused(account: str, shared: Database) -> None:
    """As tools that copy data leave it: the commit would look at nothing, and the row that makes it look would stay."""
    with lockline.connect(account) as client, client.lock("account/1") as lease, psycopg.connect(account) as mine:
        mine.execute("SET session_replication_role = 'replica'")
        with pytest.raises(ConfigError, match="session_replication_role"):
            lease.guard(mine)
        mine.execute("SET session_replication_role = 'origin'")
        lease.guard(mine)
    assert shared.ask("SELECT * FROM lockline.guard") == []


def test_in_a_savepoint_it_is_refused_because_a_rollback_to_it_would_undo_it(account: str, shared: Database) -> None:
    with lockline.connect(account) as client, psycopg.connect(account) as mine:
        lease = client.lock("account/1").acquire()
        mine.execute("UPDATE account SET balance = balance + 1")
        with pytest.raises(ConfigError, match="savepoint"), mine.transaction():
            lease.guard(mine)
        lease.guard(mine)
        with mine.transaction(force_rollback=True):
            mine.execute("UPDATE account SET balance = 0")
        client.evict("account/1")
        with pytest.raises(psycopg.Error, match="gone"):
            mine.commit()
    assert balance(shared) == 100


def test_with_a_disabled_trigger_it_is_refused(account: str, shared: Database) -> None:
    with lockline.connect(account) as client, client.lock("account/1") as lease:
        shared.ask("ALTER TABLE lockline.guard DISABLE TRIGGER check_guard_v1")
        try:
            with psycopg.connect(account) as mine, pytest.raises(ConfigError, match="ENABLE TRIGGER"):
                lease.guard(mine)
        finally:
            shared.ask("ALTER TABLE lockline.guard ENABLE TRIGGER check_guard_v1")
    assert shared.ask("SELECT * FROM lockline.guard") == []


def test_in_a_read_only_transaction_it_says_what_it_needs(account: str) -> None:
    with lockline.connect(account) as client, client.lock("account/1") as lease, psycopg.connect(account) as mine:
        mine.read_only = True
        with pytest.raises(ConfigError, match="BEGIN READ WRITE"):
            lease.guard(mine)
        mine.rollback()
        mine.read_only = False
        lease.guard(mine)


@pytest.mark.parametrize("driver", ["asyncpg", "pg8000", "psycopg2", "pipeline"])
def test_every_driver_guards_a_commit(account: str, shared: Database, driver: str) -> None:
    parts = urlsplit(account)
    login = {"host": parts.hostname, "port": parts.port, "user": parts.username, "database": parts.path[1:]}

    async def awaited(lease: Any, evict: Callable[[], Any]) -> None:
        mine = await asyncpg.connect(**login)
        try:
            async with mine.transaction():
                await mine.execute("UPDATE account SET balance = balance + 1")
                await lease.guard(mine)
                evict()
        finally:
            await mine.close()

    def blocking(lease: Any, evict: Callable[[], Any]) -> None:
        module: Any = {"pg8000": pg8000.dbapi, "psycopg2": psycopg2}[driver]
        with contextlib.closing(module.connect(**login)) as mine:
            mine.cursor().execute("UPDATE account SET balance = balance + 1")
            lease.guard(mine)
            evict()
            mine.commit()

    def piped(lease: Any, evict: Callable[[], Any]) -> None:
        with contextlib.closing(psycopg.connect(account)) as mine, mine.pipeline():
            mine.execute("UPDATE account SET balance = balance + 1")
            lease.guard(mine)
            evict()
            mine.commit()

    def work(lease: Any, evict: Callable[[], Any]) -> None:
        if driver == "asyncpg":
            asyncio.run(awaited(lease, evict))
        else:
            (piped if driver == "pipeline" else blocking)(lease, evict)

    with lockline.connect(account) as client:
        with client.lock("account/1") as lease:
            work(lease, lambda: None)
        lease = client.lock("account/1").acquire()
        with pytest.raises(Exception, match="gone"):
            work(lease, lambda: client.evict("account/1"))
    assert balance(shared) == 101
    assert shared.ask("SELECT * FROM lockline.guard") == []


def test_in_another_database_it_is_refused(account: str, shared: Database) -> None:
    shared.ask("CREATE DATABASE elsewhere")
    with lockline.connect(account) as client, client.lock("account/1") as lease:
        url = shared.url.replace("/postgres", "/elsewhere")
        with psycopg.connect(url) as mine, pytest.raises(ConfigError, match="database that has the lock"):
            lease.guard(mine)
    shared.ask("DROP DATABASE elsewhere")


@pytest.mark.parametrize("backend", ["memory:", "local:"])
def test_elsewhere_there_is_no_such_thing(backend: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with lockline.connect(backend) as client, client.lock("x") as lease, pytest.raises(ConfigError):
        lease.guard(object())


def test_it_takes_what_a_fence_takes(account: str, shared: Database) -> None:
    engine = sqlalchemy.create_engine(account.replace("postgresql:", "postgresql+psycopg:"))
    with lockline.connect(account) as client:
        with client.lock("account/1") as lease, engine.begin() as mine:
            lease.guard(mine)
            mine.execute(sqlalchemy.text("UPDATE account SET balance = balance + 1"))
        lease = client.lock("account/1").acquire()
        with engine.connect() as mine:
            lease.guard(mine)
            mine.execute(sqlalchemy.text("UPDATE account SET balance = balance + 1"))
            client.evict("account/1")
            with pytest.raises(sqlalchemy.exc.DBAPIError, match="gone"):
                mine.commit()
    engine.dispose()
    assert balance(shared) == 101


def test_in_asyncio_it_is_awaited(account: str, shared: Database) -> None:
    async def story() -> None:
        async with lockline.aio.connect(account) as client:
            async with client.lock("account/1") as lease, await psycopg.AsyncConnection.connect(account) as mine:
                await lease.guard(mine)
                await mine.execute("UPDATE account SET balance = balance + 1")
            lease = await client.lock("account/1").acquire()
            async with await psycopg.AsyncConnection.connect(account) as mine:
                await lease.guard(mine)
                await mine.execute("UPDATE account SET balance = balance + 1")
                await client.evict("account/1")
                with pytest.raises(psycopg.Error, match="gone"):
                    await mine.commit()

    asyncio.run(story())
    assert balance(shared) == 101
