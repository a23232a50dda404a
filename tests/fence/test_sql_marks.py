"""Marks in PostgreSQL: whatever the role's defaults are, whoever shares the sessions, and while the server stands still."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import psycopg
import psycopg2
import pytest

from lockline import BackendUnavailable, StaleToken
from lockline.fence import HttpFence, Offer, SqlMarks
from lockline.fence.http import fence as http_fence

from ..servers.postgres import PostgresServer
from ..servers.process import wait_for
from .test_http import Recorder, asked

pytestmark = pytest.mark.server


def offer(token: int) -> Offer:
    return Offer("l", token, "")


def with_defaults(url: str, **settings: str) -> str:
    """The same server for a role that begins its sessions like this."""
    return f"{url}?options=" + quote(" ".join(f"-c {name}={value}" for name, value in settings.items()))


@contextlib.contextmanager
def waits_for_the_row(url: str) -> Iterator[Callable[[], None]]:
    with psycopg.connect(url, autocommit=True) as watcher:
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        yield lambda: wait_for(lambda: watcher.execute(waiting).fetchone(), 60, "one that waits for the row")


@pytest.mark.parametrize("library", ["url", "psycopg", "psycopg2"])
def test_nothing_of_its_patience_stays_in_a_session_that_others_may_get(postgres: PostgresServer, library: str) -> None:
    opened: list[Any] = []

    def connect() -> Any:
        opened.append((psycopg if library == "psycopg" else psycopg2).connect(postgres.url))
        return opened[-1]

    with contextlib.closing(SqlMarks(postgres.url)) as made:
        made.admit(f"made-{library}", offer(1), writes=True, patience=5)()
    marks = SqlMarks(postgres.url if library == "url" else connect)
    marks.admit(f"patient-{library}", offer(1), writes=True, patience=5)()
    with (marks._idle[-1] if library == "url" else opened[-1]).cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)
    marks.close()


def test_whoever_is_served_for_long_stays_inside_although_the_role_may_not_be_idle_in_a_transaction(
    postgres: PostgresServer,
) -> None:
    marks = SqlMarks(with_defaults(postgres.url, idle_in_transaction_session_timeout="200"))
    others = SqlMarks(postgres.url)
    leave = marks.admit("long", offer(5), writes=True, patience=60)
    time.sleep(0.7)
    with pytest.raises(BackendUnavailable, match="stayed inside"):
        others.admit("long", offer(6), writes=True, patience=0.1)
    leave()
    others.admit("long", offer(6), writes=True, patience=60)()
    marks.close()
    others.close()


@pytest.mark.parametrize("level", ["repeatable\\ read", "serializable"])
def test_a_newer_holder_that_waited_gets_in_whatever_level_the_role_begins_with(
    postgres: PostgresServer, level: str
) -> None:
    marks = SqlMarks(with_defaults(postgres.url, default_transaction_isolation=level))
    resource = f"level-{level}"
    leave = marks.admit(resource, offer(5), writes=True, patience=60)
    with ThreadPoolExecutor(1) as threads, waits_for_the_row(postgres.url) as waits:
        newer = threads.submit(marks.admit, resource, offer(6), writes=True, patience=60)
        waits()
        leave()
        newer.result(60)()
    with pytest.raises(StaleToken):
        marks.admit(resource, offer(5), writes=True, patience=60)
    marks.close()


def test_a_server_that_stands_still_costs_no_more_than_the_patience() -> None:
    """Without an end on the client's side both would wait for as long as the server stands still."""
    server = PostgresServer()
    try:
        server.start()
        marks = SqlMarks(server.url)
        marks.admit("r", offer(5), writes=True, patience=60)()
        server.freeze()
        problems: list[BaseException] = []

        def enter() -> None:
            for _ in range(2):  # over a connection that was used before, and over a new one
                with pytest.raises(BackendUnavailable) as told:
                    marks.admit("r", offer(6), writes=True, patience=0.2)
                problems.append(told.value)

        thread = threading.Thread(target=enter, daemon=True)
        thread.start()
        thread.join(60)
        try:
            assert len(problems) == 2
        finally:
            server.thaw()
        marks.admit("r", offer(6), writes=True, patience=60)()
        marks.close()
    finally:
        server.remove()


def test_a_request_leaves_although_all_threads_wait_to_enter(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_fence, "ENTERING", 1, raising=False)
    marks, elsewhere = SqlMarks(postgres.url), SqlMarks(postgres.url)
    held = elsewhere.admit("/held", Offer("/held", 1, ""), writes=True, patience=60)

    async def story() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        app = Recorder()
        fenced = HttpFence(marks, patience=50).asgi(app)
        inside = asyncio.create_task(asked(fenced, 5, "/free"))
        await app.reached(1)
        with waits_for_the_row(postgres.url) as waits:
            outside = asyncio.create_task(asked(fenced, 5, "/held"))
            with ThreadPoolExecutor(1) as threads:
                await asyncio.get_running_loop().run_in_executor(threads, waits)
        app.go.set()
        done, _ = await asyncio.wait([inside], timeout=20)
        # First of all: what waits would keep the loop from its end.
        held()
        assert done, "it could not leave"
        assert await inside == 200
        assert await asyncio.wait_for(outside, 60) == 200

    asyncio.run(story())
    marks.close()
    elsewhere.close()
