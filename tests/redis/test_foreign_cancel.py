"""Programs that cancel every other task at their end, and go on for a while: what Lockline runs in the background outlives it."""

from __future__ import annotations

import asyncio

import pytest

import lockline
from lockline.backends.redis.connection import Connections
from lockline.backends.redis.target import understand
from lockline.backends.resp.commands import PING
from lockline.backends.resp.connection_asyncio import AsyncioLink
from lockline.runtime import clock
from tests.calm import calm
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.server


async def one_waits(client: lockline.aio.Client) -> None:
    async with asyncio.timeout(10):
        while len((await client.inspect("x")).waiters) != 1:  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.01)


async def cancel_all_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def test_requests_are_answered_after_every_other_task_was_cancelled(server: RedisServer) -> None:
    async def story() -> None:
        port = Connections(understand(server.url, "asyncio", {}), AsyncioLink)
        assert await port.ask(server.address, PING, clock.now() + 5) == b"PONG"
        for _ in range(3):
            await cancel_all_others()
            began = calm()
            assert await port.ask(server.address, PING, clock.now() + 5) == b"PONG"
            assert calm() - began < 1.5, "less than a try's patience"
        port.close()

    asyncio.run(story())
    assert len(server.client().client_list()) <= 2


def test_a_lease_is_kept_after_every_other_task_was_cancelled(server: RedisServer) -> None:
    async def story() -> None:
        async with lockline.aio.connect(server.url) as client:
            lease = await client.lock("x", ttl=2).acquire()
            await cancel_all_others()
            for _ in range(25):
                await asyncio.sleep(0.1)
                assert lease.valid
            await lease.release()

    asyncio.run(story())


def test_a_waiter_is_told_of_its_turn_after_every_other_task_was_cancelled(server: RedisServer) -> None:
    async def story() -> None:
        async with lockline.aio.connect(server.url) as holder, lockline.aio.connect(server.url) as waiter:
            held = await holder.lock("x", ttl=30).acquire()
            # A first wait, so that there is a subscription that can be cancelled.
            with pytest.raises(lockline.AcquireTimeout):
                await waiter.lock("x", ttl=30).acquire(timeout=0.5)

            async def wait() -> float:
                lease = await waiter.lock("x", ttl=30).acquire(timeout=20)
                now = calm()
                await lease.release()
                return now

            await cancel_all_others()
            waiting = asyncio.create_task(wait())
            await one_waits(holder)
            # Its client hears again: after one look at the latest, not only when the holder would expire.
            await asyncio.sleep(0.1)
            released = calm()
            await held.release()
            assert await waiting - released < 5

    asyncio.run(story())


def test_a_waiter_that_outlives_the_cancel_of_its_clients_background_tasks_has_its_turn(server: RedisServer) -> None:
    async def story() -> None:
        async with lockline.aio.connect(server.url) as holder, lockline.aio.connect(server.url) as waiter:
            held = await holder.lock("x", ttl=30).acquire()

            async def wait() -> None:
                lease = await waiter.lock("x", ttl=30).acquire(timeout=20)
                await lease.release()

            waiting = asyncio.create_task(wait(), name="the program's own")
            await one_waits(holder)
            for task in asyncio.all_tasks() - {asyncio.current_task(), waiting}:
                task.cancel()
            await asyncio.sleep(0.1)
            released = calm()
            await held.release()
            await waiting
            assert calm() - released < 5

    asyncio.run(story())
