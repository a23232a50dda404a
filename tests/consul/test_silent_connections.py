"""A connection that died without a word, and one that nobody wants any more when it has been made, hold up nobody."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from lockline import aio
from lockline.backends.consul import channel
from lockline.backends.consul.connection import ConsulRequest, NoReply
from lockline.backends.consul.connection_asyncio import LoopConsulLink
from lockline.backends.consul.connection_blocking import BlockingConsulLink
from lockline.backends.consul.target import parse
from lockline.runtime import clock
from lockline.runtime.blocking import run

from ..servers.proxy import Proxy
from .conftest import Clients

pytestmark = pytest.mark.server

A_TRY = 0.5
LONG = 3600.0
"""A deadline: who waits for it hangs, for the test."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "ALONE", A_TRY)
    monkeypatch.setattr(channel, "A_CONNECTION", A_TRY)


@pytest.mark.usefixtures("quick")
def test_the_only_agent_is_asked_on_another_connection_when_one_has_died_without_a_word(
    through: str, proxy: Proxy, client_of: Clients
) -> None:
    client = client_of(through)
    threads = [threading.Thread(target=client.inspect, args=(f"x{number}",)) for number in range(channel.MOST)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    proxy.strand()
    assert client.inspect("x").claims == ()


@pytest.mark.usefixtures("quick")
def test_the_same_in_asyncio(through: str, proxy: Proxy) -> None:
    async def story() -> None:
        async with aio.connect(through) as client:
            await asyncio.gather(*(client.inspect(f"x{number}") for number in range(channel.MOST)))
            proxy.strand()
            assert (await client.inspect("x")).claims == ()

    asyncio.run(story())


class Silent:
    """Takes connections, and never says anything."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = parse(f"consul://127.0.0.1:{self._listener.getsockname()[1]}")

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def test_a_connection_that_is_let_go_while_it_is_made_ends_as_soon_as_it_has_been(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on, connect = threading.Event(), threading.Event(), socket.create_connection

    def slow(*args: Any, **options: Any) -> socket.socket:
        begun.set()
        goes_on.wait(60)
        return connect(*args, **options)

    with Silent() as server:
        link = BlockingConsulLink(server.target, server.target.endpoints[0])
        monkeypatch.setattr(socket, "create_connection", slow)
        ended = in_a_thread(lambda: run(link.exchange(ConsulRequest("GET", "/v1/kv/x"), clock.now() + LONG)))
        assert begun.wait(60)
        link.close()
        goes_on.set()
        assert isinstance(ended(), NoReply)


def in_a_thread(work: Callable[[], object]) -> Callable[[], BaseException]:
    """Begins it; what it ended by is then asked for."""
    raised: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as problem:
            raised.append(problem)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()

    def ended() -> BaseException:
        thread.join(60)
        return raised[0]

    return ended


def test_the_same_of_one_that_a_loop_makes(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = asyncio.open_connection

    async def story() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def slow(*args: Any, **options: Any) -> Any:
            begun.set()
            await goes_on.wait()
            return await connect(*args, **options)

        with Silent() as server:
            link = LoopConsulLink(server.target, server.target.endpoints[0])
            monkeypatch.setattr(asyncio, "open_connection", slow)
            asked = asyncio.create_task(link.exchange(ConsulRequest("GET", "/v1/kv/x"), clock.now() + LONG))
            await begun.wait()
            link.close()
            goes_on.set()
            with pytest.raises(NoReply):
                await asyncio.wait_for(asked, 60)

    asyncio.run(story())
