"""Those of one client who watch one line: etcd tells the client once, whatever their number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from lockline import aio
from lockline.backends.etcd.backend import EtcdBackend
from lockline.backends.etcd.channel import Brief, EtcdChannel
from lockline.backends.etcd.commands import RANGE, TXN, Method
from lockline.backends.etcd.connection_asyncio import LoopEtcdLink
from lockline.backends.etcd.grpc import MOST, Grpc, Who
from lockline.backends.url import Endpoint
from lockline.runtime.looping import LoopRuntime

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
            async with asyncio.timeout(60):
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
        assert not watches._untold.watched
        await client.close()
        await other.close()

    asyncio.run(story())


def test_a_renewal_does_not_stand_behind_the_questions_of_others() -> None:
    """Three hundred who watched a busy line, and looked after each change, cost their client its leases."""

    async def story() -> None:
        runtime = LoopRuntime()
        link = LoopEtcdLink(Grpc("nobody", "http"), Endpoint("nobody", 2379), runtime)
        until = runtime.now() + 60

        class Asked:
            """What a channel does with a question, up to the moment at which it is on its way."""

            now = ask_member = None

            async def ask_all(self, method: Method, requests: list[Any], until: float, *, who: Who, **_: Any) -> None:
                assert await link.begin(method.path, b"", None, who, until) is not None

        way = Brief(cast(EtcdChannel, Asked()))
        questions = [asyncio.create_task(way.ask_all(RANGE, [], until)) for _ in range(MOST + 20)]
        await asyncio.sleep(0.01)
        assert sum(task.done() for task in questions) < MOST
        assert await link.begin(TXN.path, b"", None, "call", runtime.now() + 60) is not None
        assert not all(task.done() for task in questions)
        for task in questions:
            task.cancel()
        await asyncio.gather(*questions, return_exceptions=True)

    asyncio.run(story())
