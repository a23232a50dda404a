"""Steps take what they lock in one order, so that the database never has to end one of two."""

from __future__ import annotations

import threading

import psycopg
import pytest

import lockline
from tests.servers.process import wait_for

from .conftest import Database

pytestmark = pytest.mark.server
WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


def test_a_downgrade_takes_the_lines_lock_before_any_row(shared: Database) -> None:
    with lockline.connect(f"{shared.url}?prefix=order") as client, psycopg.connect(shared.url) as step:
        lease = client.rwlock("x").write().acquire()
        # A step of somebody else on the same line: first the line, then its rows.
        (at,) = client._engine.backend._places("x")[:1]  # type: ignore[attr-defined]
        step.execute("SELECT pg_advisory_xact_lock(%s)", [at])
        thread = threading.Thread(target=lease.downgrade)
        thread.start()
        wait_for(lambda: shared.ask(WAITING) == [(1,)], 60, "the downgrade to wait for the line")
        # Nobody has to end one of two: the row is free.
        step.execute("SELECT id FROM lockline.claim WHERE name = 'order:x' FOR UPDATE NOWAIT")
        step.commit()
        thread.join(60)
        assert client.inspect("x").holders[0].kind == "read"
        lease.release()


def test_many_clients_that_renew_and_leave_in_many_lines_are_never_crossed(shared: Database) -> None:
    before = shared.ask("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    problems: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with lockline.connect(f"{shared.url}?prefix=cross") as client:
                for turn in range(8):
                    names = [f"n{(number + turn + step) % 5}" for step in range(3)]
                    with client.locks(*names, timeout=60, ttl=60) as leases:
                        for lease in leases.values():
                            lease.extend(60)
                    with client.rwlock("rw").write() as lease:
                        lease.downgrade()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not problems
    assert shared.ask("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == before
