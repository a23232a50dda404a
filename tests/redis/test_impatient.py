"""A deadline belongs to its request: one caller with little time costs the others on its connection nothing."""

from __future__ import annotations

import asyncio

import pytest

import lockline
from lockline import AcquireTimeout, BackendUnavailable
from lockline.backends.resp import connection_asyncio
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.server


def connections(server: RedisServer) -> int:
    """How many were ever made; each command of `server` makes one of its own."""
    return int(server.command("INFO", "stats")["total_connections_received"])


def test_a_task_with_little_time_leaves_the_connection_to_the_others(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a busy machine is not taken for a connection that has to be given up.
    monkeypatch.setattr(connection_asyncio, "SHORTEST_PATIENCE_S", 60.0)

    async def story() -> None:
        async with lockline.aio.connect(f"{server.url}?timeout=60") as client:
            async with client.lock("warm"):
                pass
            before = connections(server)
            # Each answer takes longer than the impatient task has.
            server.freeze()
            try:
                patient = asyncio.create_task(client.lock("patient", ttl=60).acquire(timeout=60))
                for _ in range(3):
                    with pytest.raises((AcquireTimeout, BackendUnavailable)):
                        await client.lock("impatient", ttl=60).acquire(timeout=0.02)
            finally:
                server.thaw()
            await (await patient).release()
            # What the impatient task asked for is withdrawn. Until then the next one would wait, on a second connection.
            while (await client.inspect("impatient")).claims:  # noqa: ASYNC110 - the store has the only event
                await asyncio.sleep(0.01)
            await (await client.lock("impatient", ttl=60).acquire(timeout=60)).release()
            assert connections(server) == before + 1  # that of this question

    asyncio.run(story())
