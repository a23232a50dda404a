"""Those of one client who watch one line: etcd tells the client once, whatever their number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from lockline import aio
from lockline.backends.etcd.backend import EtcdBackend

pytestmark = pytest.mark.server


def test_the_server_tells_a_client_of_a_change_once_whoever_watches_there(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told for each of them, a client of fifty on a busy line read nothing else any more: no look, no renewal was answered."""

    async def story() -> None:
        client, other = aio.connect(url), aio.connect(url, owner="boss")
        watches = cast(EtcdBackend, client._engine.backend)._watches
        hear, heard = watches._hear, list[bytes]()

        def counted(message: bytes) -> None:
            heard.append(message)
            hear(message)

        monkeypatch.setattr(watches, "_hear", counted)
        told: list[list[str | None]] = [[] for _ in range(20)]

        async def watch(seen: list[str | None]) -> None:
            async for leader in client.watch("x", every=3600):
                seen.append(None if leader is None else leader.owner)

        async def until(condition: Callable[[list[str | None]], bool], seen: list[list[str | None]]) -> None:
            async with asyncio.timeout(30):
                while not all(condition(each) for each in seen):  # noqa: ASYNC110 - it is the state that counts
                    await asyncio.sleep(0.005)

        tasks = [asyncio.create_task(watch(seen)) for seen in told]
        await until(lambda seen: seen == [None], told)
        before = len(heard)
        lease = await other.lock("x", ttl=60).acquire()
        await until(lambda seen: seen == [None, "boss"], told)
        assert len(heard) - before <= 3
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)
        await lease.release()
        await until(lambda seen: seen == [None, "boss", None], told[:1])
        assert [len(seen) for seen in told[1:]] == [2] * 19
        tasks[0].cancel()
        await asyncio.gather(tasks[0], return_exceptions=True)
        assert (watches._by_claim, watches._watching, watches._lines) == ({}, {}, set())
        assert not watches._untold
        await client.close()
        await other.close()

    asyncio.run(story())
