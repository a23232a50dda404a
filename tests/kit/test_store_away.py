"""The store is away when the work is done: the result is written as long as the lease lasts, not for a fixed time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import lockline
from lockline.core.engine import PATIENCE
from lockline.runtime import clock
from tests.servers.redis import a_redis

TTL = 300.0


class Patience:
    """How long each write of a value may take."""

    def __init__(self, client: Any) -> None:
        self.of: list[float] = []
        backend: Any = client._engine.backend
        keep: Callable[..., Any] = backend.keep

        async def noted(*args: Any) -> Any:
            self.of.append(args[-1] - clock.now())
            return await keep(*args)

        backend.keep = noted


def test_a_slot_is_marked_as_done_until_the_lease_ends() -> None:
    with lockline.connect("memory:marked-until-the-end") as client:
        patience = Patience(client)
        assert client.once_per("1h", name="job", ttl=TTL)(lambda: None)().state == "ran"
        assert patience.of[0] > 10 * PATIENCE


def test_a_value_is_kept_until_the_lease_ends() -> None:
    with lockline.connect("memory:kept-until-the-end") as client:
        patience = Patience(client)
        assert client.once("report", lambda: 42, 60, ttl=TTL) == 42
        assert patience.of[0] > 10 * PATIENCE


def test_so_it_is_in_asyncio() -> None:
    async def story() -> None:
        async with lockline.aio.connect("memory:asyncio-until-the-end") as client:
            patience = Patience(client)

            async def work() -> int:
                return 42

            assert (await client.once_per("1h", name="job", ttl=TTL)(work)()).state == "ran"
            assert await client.once("report", work, 60, ttl=TTL) == 42
            assert min(patience.of) > 10 * PATIENCE

    asyncio.run(story())


@pytest.mark.full  # test_a_slot_is_marked_as_done_until_the_lease_ends shows the deadline of that request
@pytest.mark.server
def test_a_store_that_comes_back_after_14_seconds_has_the_slot_marked() -> None:
    """It waits for longer than the ten seconds that a question to the store may take."""
    ran = []
    with a_redis(keeps_data=True) as server, lockline.connect(server.url) as client:

        def work() -> None:
            ran.append(time.monotonic())
            server.kill()
            threading.Timer(PATIENCE + 4, server.start).start()

        job = client.once_per("1d", name="job", ttl=60)(work)
        assert job().state == "ran"
        assert job().state == "done"
    assert len(ran) == 1
