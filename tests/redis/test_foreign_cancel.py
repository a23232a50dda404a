"""Programs that cancel every other task at their end, and go on for a while: what Lockline runs in the background outlives it."""

from __future__ import annotations

import asyncio

import pytest

import lockline
from lockline.backends.redis.connection import Connections
from lockline.backends.redis.target import understand
from lockline.backends.resp.commands import PING
from lockline.backends.resp.link_asyncio import AsyncioLink
from lockline.runtime import clock
from tests.redis.renewed import TTL, wait_for_renewal
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.server


async def one_waits(client: lockline.aio.Client) -> None:
    async with asyncio.timeout(60):
        while len((await client.inspect("x")).waiters) != 1:  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.01)


async def cancel_all_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def test_requests_are_answered_after_every_other_task_was_cancelled(server: RedisServer) -> None:
    async def story() -> None:
        # One try may take far longer than this story: an answer to a second one would come too late.
        port = Connections(understand(server.url, "asyncio", {"socket_timeout": 300}), AsyncioLink)
        assert await port.ask(server.address, PING, clock.now() + 300) == b"PONG"
        for _ in range(3):
            await cancel_all_others()
            async with asyncio.timeout(60):
                assert await port.ask(server.address, PING, clock.now() + 300) == b"PONG"
        port.close()

    asyncio.run(story())
    assert len(server.client().client_list()) <= 2


def test_a_lease_is_kept_after_every_other_task_was_cancelled(server: RedisServer) -> None:
    async def story() -> None:
        async with lockline.aio.connect(server.url) as client:
            lease = await client.lock("x", ttl=TTL).acquire()
            await cancel_all_others()
            await asyncio.to_thread(wait_for_renewal, lease)
            await lease.release()

    asyncio.run(story())


def test_a_waiter_is_told_of_its_turn_after_every_other_task_was_cancelled(server: RedisServer) -> None:
    async def story() -> None:
        async with lockline.aio.connect(server.url) as holder, lockline.aio.connect(server.url) as waiter:
            # Longer than anybody here waits: nobody gets it because it has expired.
            held = await holder.lock("x", ttl=300).acquire()
            # A first wait, so that there is a subscription that can be cancelled.
            with pytest.raises(lockline.AcquireTimeout):
                await waiter.lock("x", ttl=300).acquire(timeout=0.5)

            async def wait() -> None:
                lease = await waiter.lock("x", ttl=300).acquire(timeout=60)
                await lease.release()

            await cancel_all_others()
            waiting = asyncio.create_task(wait())
            await one_waits(holder)
            # Its client hears again: after one look at the latest, not only when the holder would expire.
            await asyncio.sleep(0.1)
            await held.release()
            await waiting

    asyncio.run(story())


def test_a_waiter_that_outlives_the_cancel_of_its_clients_background_tasks_has_its_turn(server: RedisServer) -> None:
    async def story() -> None:
        async with lockline.aio.connect(server.url) as holder, lockline.aio.connect(server.url) as waiter:
            # Longer than anybody here waits: nobody gets it because it has expired.
            held = await holder.lock("x", ttl=300).acquire()

            async def wait() -> None:
                lease = await waiter.lock("x", ttl=300).acquire(timeout=60)
                await lease.release()

            waiting = asyncio.create_task(wait(), name="the program's own")
            await one_waits(holder)
            for task in asyncio.all_tasks() - {asyncio.current_task(), waiting}:
                task.cancel()
            await asyncio.sleep(0.1)
            await held.release()
            await waiting

    asyncio.run(story())
