"""Connections that break while nobody asks for anything: whoever asks next does not notice."""

from __future__ import annotations

import asyncio
import time

import pytest

import lockline
from tests.servers.proxy import Proxy

from .conftest import Store

pytestmark = pytest.mark.server

HEARD = 0.05
"""Seconds in which a loop with nothing else to do hears of a reset."""


@pytest.mark.parametrize("breaks", ["cut", "reset"])
def test_connections_that_broke_while_they_were_idle_cost_nothing(store: Store, breaks: str) -> None:
    with Proxy(("127.0.0.1", store.port)) as line, lockline.connect(store.through(line)) as client:
        for _ in range(3):
            lease = client.lock("x").acquire(timeout=60)
            getattr(line, breaks)()
            time.sleep(HEARD)
            lease.release()
            getattr(line, breaks)()
            time.sleep(HEARD)
            assert client.list() == []


@pytest.mark.parametrize("breaks", ["cut", "reset"])
def test_the_same_in_asyncio(store: Store, breaks: str) -> None:
    async def story() -> None:
        with Proxy(("127.0.0.1", store.port)) as line:
            async with lockline.aio.connect(store.through(line)) as client:
                for _ in range(3):
                    lease = await client.lock("x").acquire(timeout=60)
                    getattr(line, breaks)()
                    await asyncio.sleep(HEARD)
                    await lease.release()
                    getattr(line, breaks)()
                    await asyncio.sleep(HEARD)
                    assert await client.list() == []

    asyncio.run(story())
