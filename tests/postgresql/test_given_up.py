"""Steps that the server does not answer: each try that is given up leaves no session behind, and nobody else is locked out."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

import lockline
from tests.servers.process import wait_for

from .conftest import Database

pytestmark = pytest.mark.server

TRIES = 8
MOST = 6
"""Sessions of one client with one caller: the one that asks, four that were given up and have not ended, one that listens."""
OURS = "FROM pg_stat_activity WHERE application_name = 'lockline'"


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    database = Database("-c", "max_prepared_transactions=5", lasts=True)
    database.ask("CREATE ROLE stranger LOGIN")
    yield database
    database.close()


@contextlib.contextmanager
def obstructed(kind: str, database: Database, client: Any) -> Iterator[None]:
    """The server answers no step for the lock x."""
    url = database.url
    if kind == "standby":
        database.ask("ALTER SYSTEM SET synchronous_standby_names = 'gone'")
        database.ask("SELECT pg_reload_conf()")
        wait_for(lambda: database.ask("SHOW synchronous_standby_names") == [("gone",)], 60, "the setting")
        yield
        database.ask("ALTER SYSTEM RESET synchronous_standby_names")
        database.ask("SELECT pg_reload_conf()")
        return
    (at,) = client._engine.backend._places("x")[:1]
    with psycopg.connect(url.replace("lockline@", "stranger@") if kind == "advisory" else url) as other:
        if kind == "prepared":
            with lockline.connect(url) as holder:
                lease = holder.lock("x", ttl=600, renew=False).acquire()
                other.tpc_begin(other.xid(1, "guarded", "x"))
                lease.guard(other)
                other.tpc_prepare()
                database.ask("UPDATE lockline.claim SET expires = clock_timestamp() WHERE ticket = %s", lease.token)
                yield
                other.tpc_rollback()
            return
        if kind == "advisory":
            other.execute("SELECT pg_advisory_lock(%s)", [at])
        else:
            other.execute("LOCK TABLE lockline.claim IN ACCESS EXCLUSIVE MODE")
        yield


def counted(client: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tries of this client from now on."""
    tries: list[str] = []
    link = client._engine.backend._link
    ask = link.ask

    async def noted(call: Any, until: float) -> Any:
        tries.append(call.routine)
        return await ask(call, until)

    monkeypatch.setattr(link, "ask", noted)
    return tries


def sessions(database: Database) -> int:
    return int(database.ask(f"SELECT count(*) {OURS}")[0][0])


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
@pytest.mark.parametrize("kind", ["table", "advisory", "standby", "prepared"])
def test_tries_that_are_not_answered_leave_no_sessions_behind(
    database: Database, kind: str, flavour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{database.url}?timeout=0.3"
    wait_for(lambda: not sessions(database), 60, "the end of the story before")

    def check(tries: list[str]) -> None:
        wait_for(lambda: len(tries) >= TRIES, 60, "many tries")
        assert sessions(database) <= MOST

    def in_threads() -> None:
        with lockline.connect(url) as client:
            client.lock("warm").acquire().release()
            granted: list[lockline.Lease] = []

            def work() -> None:
                granted.append(client.lock("x", ttl=60).acquire(timeout=120))
                granted[0].release()

            thread = threading.Thread(target=work)
            with obstructed(kind, database, client):
                tries = counted(client, monkeypatch)
                thread.start()
                check(tries)
                assert not granted, "granted, and the replica does not have it"
            thread.join(60)
            assert not thread.is_alive()

    async def in_tasks() -> None:
        async with lockline.aio.connect(url) as client:
            await (await client.lock("warm").acquire()).release()
            stack = contextlib.ExitStack()
            await asyncio.to_thread(stack.enter_context, obstructed(kind, database, client))
            with stack:
                tries = counted(client, monkeypatch)
                waits = asyncio.create_task(client.lock("x", ttl=60).acquire(timeout=120))
                await asyncio.to_thread(check, tries)
                assert not waits.done(), "granted, and the replica does not have it"
            await (await asyncio.wait_for(waits, 60)).release()

    asyncio.run(in_tasks()) if flavour == "asyncio" else in_threads()
    wait_for(lambda: not sessions(database), 60, "the end of all sessions")


def test_with_the_usual_patience_a_step_that_waits_for_a_lock_is_undone_in_its_session(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pids() -> set[int]:
        return {pid for (pid,) in database.ask(f"SELECT pid {OURS}")}

    # Only as patient as a client is by default, but on a machine that may be slow.
    with lockline.connect(f"{database.url}?timeout=20") as client:
        client.lock("warm").acquire().release()
        before = pids()
        with obstructed("table", database, client):
            tries = counted(client, monkeypatch)
            caught: list[BaseException] = []

            def wait() -> None:
                with pytest.raises(lockline.BackendUnavailable) as told:
                    client.lock("x").acquire(timeout=5)
                caught.append(told.value)

            thread = threading.Thread(target=wait)
            thread.start()
            wait_for(lambda: len(tries) >= 3, 60, "some tries")
            assert pids() == before
            thread.join(60)
        assert "keeps locked what the step needs" in str(caught[0])


def test_a_client_that_is_closed_in_the_middle_of_a_step_has_the_server_end_it(database: Database) -> None:
    with obstructed("standby", database, None):
        for _ in range(3):
            with (
                lockline.connect(f"{database.url}?timeout=0.3") as client,
                pytest.raises(lockline.LocklineError),
            ):
                client.lock("x").acquire(timeout=0.5)
        wait_for(lambda: not sessions(database), 60, "the end of all sessions")
