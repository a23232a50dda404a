"""`lease.guard(connection)`: lock and data agree in one transaction, also when the holder was frozen."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

import lockline
from lockline import BackendUnavailable, ConfigError, LeaseLost
from lockline.runtime.blocking import run
from lockline.runtime.clock import now
from tests.guarded import freeze_a_holder
from tests.tier import sample

from .conftest import Database

pytestmark = pytest.mark.server
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
ADD = "UPDATE account SET balance = balance + 1"


@pytest.fixture
def account(shared: Database) -> Iterator[str]:
    """A row that is read, thought about, and written."""
    shared.ask("DROP TABLE IF EXISTS account")
    shared.ask("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL) ENGINE = InnoDB")
    shared.ask("INSERT INTO account VALUES (1, 100)")
    yield f"{shared.url}?prefix=guard"
    shared.ask("DROP TABLE account")


def balance(database: Database) -> int:
    return int(database.ask("SELECT balance FROM account")[0][0])


def engine_url(database: Database) -> str:
    return database.url.replace("mysql:", "mysql+pymysql:") + "?ssl_disabled=true"


@pytest.mark.parametrize(
    ("guard", "said", "left"),
    # Without a guard the update is lost: no promise, but why there is a guard.
    [*sample([], [("never", "committed", 101)]), ("last", "refused: LeaseLost", 110)],
)
def test_a_frozen_holder_loses_the_next_ones_update_unless_it_is_guarded(
    account: str, shared: Database, guard: str, said: str, left: int
) -> None:
    """Longer than 5 s where it is guarded: its own clock has to come to its deadline, of 5 s."""
    over = "UPDATE lockline_claim SET expires = 1"
    run_out = guard != "last" and (lambda: shared.ask(over))
    assert freeze_a_holder(account, engine_url(shared), guard, run_out=run_out) == said
    assert balance(shared) == left


def test_guarded_from_the_beginning_a_frozen_holder_keeps_the_others_out(account: str, shared: Database) -> None:
    """Longer than 5 s: so is its ttl, which passes."""
    assert freeze_a_holder(account, engine_url(shared), "first", for_good=True) == "committed"
    assert balance(shared) == 101
    with lockline.connect(account) as client:
        client.lock("account/1").acquire(timeout=60).release()


@pytest.mark.parametrize("level", LEVELS)
def test_a_lease_that_is_renewed_meanwhile_commits_at_every_level(account: str, shared: Database, level: str) -> None:
    with lockline.connect(account) as client, client.lock("account/1", ttl=30) as lease:
        with shared.connect(autocommit=False) as mine:
            mine.query(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            mine.query(ADD)
            lease.guard(mine)
            ends = "SELECT expires FROM lockline_claim WHERE ticket = %s"
            first = shared.ask(ends, lease.token)
            lease.extend(30)
            assert shared.ask(ends, lease.token) != first
            mine.commit()
        assert lease.valid
    assert balance(shared) == 101


@pytest.mark.parametrize("level", LEVELS)
def test_after_an_eviction_it_is_refused_and_rolled_back_at_every_level(
    account: str, shared: Database, level: str
) -> None:
    with lockline.connect(account) as client, lockline.connect(account) as operator:
        lease = client.lock("account/1").acquire()
        with shared.connect(autocommit=False) as mine:
            mine.query(f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            mine.query(ADD)
            operator.evict("account/1")
            with pytest.raises(LeaseLost):
                lease.guard(mine)
            # Nothing of it is left, not even the gap where it looked: others come in.
            operator.lock("account/1", timeout=60).acquire().release()
            mine.commit()
        with contextlib.suppress(LeaseLost):
            lease.release()
    assert balance(shared) == 100


def test_until_the_commit_the_next_holder_waits_and_other_names_do_not(account: str, shared: Database) -> None:
    """Longer than 5 s: so is its ttl, which passes."""
    with lockline.connect(account) as client, lockline.connect(account) as other:
        slot = client._engine.backend._places("account/1").at & 1023  # type: ignore[attr-defined]
        same_slot = next(name for name in map(str, range(10**6)) if _slot(other, name) == slot)
        lease = client.lock("account/1", ttl=5, renew=False).acquire()
        with shared.connect(autocommit=False) as mine:
            mine.query(ADD)
            lease.guard(mine)
            seen: list[int] = []

            def next_one() -> None:
                with other.lock("account/1", timeout=60):
                    seen.append(balance(shared))

            thread = threading.Thread(target=next_one)
            thread.start()
            assert lease.lost.wait(60)
            # Those who share its slot are not kept: nobody waits in there for the end of somebody's transaction.
            for _ in range(10):
                client.lock(same_slot, timeout=60).acquire().release()
            thread.join(0.5)
            assert not seen
            assert [claim.token for claim in client.inspect("account/1").claims if claim.token == lease.token] == []
            mine.commit()
        thread.join(60)
        assert seen == [101]


def _slot(client: lockline.Client, name: str) -> int:
    return int(client._engine.backend._places(name).at & 1023)  # type: ignore[attr-defined]


def test_an_operator_waits_for_the_commit_and_says_why(account: str, shared: Database) -> None:
    with lockline.connect(account) as client, lockline.connect(account) as operator:
        lease = client.lock("account/1").acquire()
        with shared.connect(autocommit=False) as mine:
            lease.guard(mine)
            with pytest.raises(BackendUnavailable, match=r"keeps the claim.*commit it before the release"):
                run(operator._engine.backend.evict("account/1", now() + 3))
            mine.commit()
        assert operator.evict("account/1") == 1
        with contextlib.suppress(LeaseLost):
            lease.release()


def test_outside_a_transaction_or_elsewhere_it_is_refused(account: str, shared: Database) -> None:
    with lockline.connect(account) as client, client.lock("account/1") as lease:
        with shared.connect() as mine, pytest.raises(ConfigError, match="transaction"):
            lease.guard(mine)
        with pytest.raises(ConfigError, match="connection"):
            lease.guard()
        sqlite = sqlalchemy.create_engine("sqlite://")
        with sqlite.begin() as elsewhere, pytest.raises(ConfigError, match="a connection to MySQL"):
            lease.guard(elsewhere)
        sqlite.dispose()


def test_it_takes_what_a_fence_takes_also_awaited(account: str, shared: Database) -> None:
    pool = sqlalchemy.create_engine(engine_url(shared))
    with lockline.connect(account) as client, client.lock("account/1") as lease, pool.begin() as mine:
        mine.execute(sqlalchemy.text(ADD))
        lease.guard(mine)
    pool.dispose()

    async def story() -> None:
        pool = create_async_engine(shared.url.replace("mysql:", "mysql+aiomysql:"))
        async with lockline.aio.connect(account) as client:
            async with client.lock("account/1") as lease, pool.begin() as mine:
                await mine.execute(sqlalchemy.text(ADD))
                await lease.guard(mine)
            lease = await client.lock("account/1").acquire()
            await client.evict("account/1")
            async with pool.connect() as mine:
                await mine.execute(sqlalchemy.text(ADD))
                with pytest.raises(LeaseLost):
                    await lease.guard(mine)
                await mine.commit()
        await pool.dispose()

    asyncio.run(story())
    assert balance(shared) == 102
