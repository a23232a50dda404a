"""Releases that hand their turn on inside travel together: a packet for many, and none that is wanted elsewhere waits for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

import lockline
from lockline import aio
from lockline.backends.redis.joined import JOINED
from lockline.backends.resp import connection_asyncio, link_asyncio
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.server

FOR_EVER = 600.0
MANY = 24


def on_a_loop(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run it on a loop of its own."""

    @wraps(story)
    def test(*args: Any, **kwargs: Any) -> None:
        asyncio.run(story(*args, **kwargs))

    return test


async def line_up(client: aio.Client, entered: list[str], *bodies: Any) -> tuple[aio.Lease, list[asyncio.Task[None]]]:
    """A lease, and tasks that wait behind it in this order, each of which knows behind whom and has no more to ask."""
    lease = await client.lock("x").acquire()

    async def one(number: int, body: Any) -> None:
        async with client.lock("x"):
            entered.append(f"{number}")
            if body is not None:
                await body

    tasks = [asyncio.create_task(one(number, body)) for number, body in enumerate(bodies)]
    books = client._engine._keeper.books

    def all_know() -> bool:
        known, own = list(books.values()), client._engine.backend._claims  # type: ignore[attr-defined]
        return len(known) == len(bodies) + 1 and all(
            one.token or (one.behind and one.claim.id in own and own[one.claim.id].look_by) for one in known
        )

    await asyncio.to_thread(wait_for, all_know, 60, "where each stands")
    return lease, tasks


@on_a_loop
async def test_turns_that_are_handed_on_in_a_row_share_their_packets(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_asyncio, "A_MOMENT", FOR_EVER)
    entered: list[str] = []
    packets: list[int] = []
    server.command("SCRIPT", "LOAD", JOINED.body)
    write = connection_asyncio.AsyncioConnection.write

    def note(connection: connection_asyncio.AsyncioConnection, data: bytes) -> None:
        packets.append(data.count(b"EVALSHA"))
        write(connection, data)

    async with aio.connect(server.url) as client:
        lease, tasks = await line_up(client, entered, *[None] * MANY)
        monkeypatch.setattr(connection_asyncio.AsyncioConnection, "write", note)
        await lease.release()
        await asyncio.gather(*tasks)
    # The last one hands nothing on, so it goes at once, and takes all others along: these as one.
    assert [many for many in packets if many] == [2]
    assert entered == [f"{number}" for number in range(MANY)]


@on_a_loop
async def test_a_release_that_nobody_follows_is_not_held_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_asyncio, "A_MOMENT", FOR_EVER)
    entered: list[str] = []
    go_on = asyncio.Event()
    async with aio.connect(server.url) as client:
        lease, tasks = await line_up(client, entered, go_on.wait())
        async with asyncio.timeout(60):
            # It returns with the store's answer, while the next one is at work and has nothing to send.
            await lease.release()
        assert entered == ["0"]
        go_on.set()
        await asyncio.gather(*tasks)


@on_a_loop
async def test_whatever_others_wait_for_takes_along_what_is_held_back(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn of a stranger does not come later because others of this client had theirs before."""
    monkeypatch.setattr(link_asyncio, "A_MOMENT", FOR_EVER)
    entered: list[str] = []
    with lockline.connect(server.url) as other:
        async with aio.connect(server.url) as client:
            lease, tasks = await line_up(client, entered, *[None] * MANY)
            stranger = asyncio.create_task(asyncio.to_thread(other.lock("x").acquire))
            await asyncio.to_thread(wait_for, lambda: len(other.inspect("x").waiters) > MANY, 60, "a stranger")
            async with asyncio.timeout(60):
                await lease.release()
                late = await stranger
            assert entered == [f"{number}" for number in range(MANY)]
            late.release()
            await asyncio.gather(*tasks)


def test_a_thread_that_hands_on_returns_with_the_stores_answer_while_the_next_one_is_at_work(
    server: RedisServer,
) -> None:
    with lockline.connect(server.url) as client:
        lease = client.lock("x").acquire()
        leave = threading.Event()
        told: list[bool] = []

        def next_one() -> None:
            with client.lock("x"):
                told.append(leave.wait(60))

        second = threading.Thread(target=next_one)
        second.start()
        books = client._engine._keeper.books
        wait_for(lambda: any(one.behind for one in list(books.values())), 60, "one behind the other")
        # It returns with the store's answer, while the next one is at work.
        lease.release()
        leave.set()
        second.join(60)
        assert told == [True], "the release returned before the next one had ended"
