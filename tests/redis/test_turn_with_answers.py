"""A turn that comes in one moment with the answers to those who stand behind it: who has it knows its heir."""

from __future__ import annotations

import asyncio

import pytest

import lockline
from lockline.core.shells import engine_of
from tests.redis.test_together import on_a_loop
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.server

CROWD = 6


@on_a_loop
async def test_one_whose_turn_came_with_the_answers_to_others_hands_it_on_to_them(server: RedisServer) -> None:
    tokens: list[int] = []

    async def take() -> None:
        async with client.lock("x", ttl=60) as lease:
            tokens.append(lease.token)

    with lockline.connect(server.url) as stranger:
        async with lockline.aio.connect(server.url) as client:
            # Once it has waited, the server can reach it.
            held = stranger.lock("x", ttl=60).acquire()
            first = asyncio.create_task(take())
            subscriptions = engine_of(client).backend._subscriptions  # type: ignore[attr-defined]
            while not subscriptions.open:  # noqa: ASYNC110 - it is the state that counts
                await asyncio.sleep(0.01)
            held.release()
            await first

            held = stranger.lock("x", ttl=60).acquire()
            crowd = [asyncio.create_task(take()) for _ in range(CROWD)]
            # In one turn of the loop they ask, in the next one all of it is sent. From here on the loop stands still, so that it finds
            # the answers and the turn of the first one together.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            while len(stranger.inspect("x").waiters) < CROWD:
                pass
            told = server.command("INFO", "commandstats")["cmdstat_publish"]["calls"]
            held.release()
            await asyncio.gather(*crowd)
            assert server.command("INFO", "commandstats")["cmdstat_publish"]["calls"] == told + 1
    assert tokens == sorted(set(tokens))
