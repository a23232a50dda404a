"""What an asyncio client has open or under way ends when it is told to, wherever it has got to."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from lockline import ClientClosed
from lockline.backends.redis.connection import Connections
from lockline.backends.redis.subscription import AsyncioSubscriptions, BlockingSubscriptions
from lockline.backends.redis.target import understand
from lockline.backends.resp.commands import PING
from lockline.backends.resp.errors import NoAnswer
from lockline.backends.resp.link_asyncio import AsyncioLink
from lockline.runtime import clock
from lockline.runtime.blocking import run
from tests.cutting import SoftLimit
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.tier import sample

from .test_listening import Looks, subscriptions_of

pytestmark = pytest.mark.server


# asyncio itself leaves a socket to the garbage when a connect is cancelled as it succeeds.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_subscription_that_is_being_made_anew_can_be_closed_at_any_moment(server: RedisServer) -> None:
    """A library on the way may swallow the cancel that ends it: then `close` would wait for ever."""

    async def story() -> None:
        for turns in range(0, 600, sample(25, 2)):
            subscriptions = subscriptions_of(AsyncioSubscriptions, "asyncio", server, Looks())
            await subscriptions.listen(server.address, clock.now() + 60)
            server.command("CLIENT", "KILL", "TYPE", "pubsub")
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(60):
                await subscriptions.close()
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(story())


def test_a_connection_that_is_being_made_is_given_up_when_its_client_closes(server: RedisServer) -> None:
    """Nobody would ever read what comes on it."""

    async def story() -> None:
        with Proxy(server.address) as proxy:
            address = ("127.0.0.1", proxy.port)
            proxy.black_hole()
            port = Connections(understand(server.url, "asyncio", {}), AsyncioLink)
            asking = asyncio.create_task(port.ask(address, PING, clock.now() + 300))
            await asyncio.to_thread(wait_for, lambda: proxy.accepted, 60, "a connection")
            port.close()
            async with asyncio.timeout(60):
                with pytest.raises(NoAnswer):
                    await asking
                with pytest.raises(ClientClosed):
                    await port.ask(address, PING, clock.now() + 300)

    asyncio.run(story())


def test_nobody_waits_for_anothers_connection_beyond_its_own_deadline(server: RedisServer) -> None:
    """Also who comes between one that leaves and the next one in the line."""

    async def story() -> None:
        with Proxy(server.address) as proxy:
            address = ("127.0.0.1", proxy.port)
            proxy.black_hole()
            port = Connections(understand(server.url + "?timeout=10", "asyncio", {}), AsyncioLink)
            first, second = (asyncio.create_task(port.ask(address, PING, clock.now() + 300)) for _ in range(2))
            await asyncio.to_thread(wait_for, lambda: proxy.accepted, 60, "a connection")
            first.cancel()
            late = []
            while proxy.accepted < 2:
                late.append(asyncio.create_task(port.ask(address, PING, clock.now() + 0.2)))
                await asyncio.sleep(0)
            late.append(asyncio.create_task(port.ask(address, PING, clock.now() + 0.2)))
            async with asyncio.timeout(60):
                told = await asyncio.gather(*late, return_exceptions=True)
            assert not second.done()
            assert {type(each) for each in told} == {NoAnswer}
            port.close()
            await asyncio.gather(second, return_exceptions=True)

    asyncio.run(story())


def test_whoever_asks_on_a_broken_connection_learns_it_at_once(server: RedisServer) -> None:
    async def story() -> None:
        port = Connections(understand(server.url, "asyncio", {}), AsyncioLink)
        link = port.to(server.address)
        assert isinstance(link, AsyncioLink)
        pipeline = await link.pipeline(clock.now() + 60)
        pipeline.connection.close(ConnectionAbortedError("gone"))
        with pytest.raises(NoAnswer, match="gone"):
            pipeline.ask(PING, clock.now() + 60)
        port.close()

    asyncio.run(story())


def test_a_subscription_that_nobody_confirms_ends_with_its_client(server: RedisServer) -> None:
    async def story() -> None:
        with Proxy(server.address) as proxy:
            address = ("127.0.0.1", proxy.port)
            subscriptions = subscriptions_of(AsyncioSubscriptions, "asyncio", server, Looks())
            proxy.black_hole()
            listening = asyncio.create_task(subscriptions.listen(address, clock.now() + 300))
            await asyncio.to_thread(wait_for, lambda: proxy.requests, 60, "a request")
            await subscriptions.close()
            async with asyncio.timeout(60):
                with pytest.raises(NoAnswer):
                    await listening

    asyncio.run(story())


def test_nobody_waits_beyond_its_own_deadline_while_another_thread_opens_the_subscription(server: RedisServer) -> None:
    """Connections are accepted and get no answer; one thread has time, the other has not."""
    target = understand(server.url, "blocking", {"socket_timeout": 60})
    subscriptions = BlockingSubscriptions(target, "ll", lambda message: message)
    subscriptions.hints = Looks()
    with Proxy(server.address) as proxy:
        proxy.black_hole()
        address = ("127.0.0.1", proxy.port)

        def listen(seconds: float) -> None:
            with pytest.raises(NoAnswer):
                run(subscriptions.listen(address, clock.now() + seconds))

        with ThreadPoolExecutor() as threads:
            patient = threads.submit(listen, 60.0)
            wait_for(lambda: proxy.accepted, 60, "the patient one's connection")
            listen(0.2)
            assert not patient.done(), "it was waited for"
            proxy.refuse()
            proxy.cut()


def test_a_soft_limit_that_strikes_who_subscribes_anew_is_its_own(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the threads that wait one reads for all, and mends what broke; the limit of that one would be lost."""
    subscriptions = subscriptions_of(BlockingSubscriptions, "blocking", server, Looks())
    run(subscriptions.listen(server.address, clock.now() + 60))
    subscriptions._lose(subscriptions.open[server.address])

    def strike(*_: object) -> None:
        raise SoftLimit

    monkeypatch.setattr(subscriptions, "_listen", strike)
    with pytest.raises(SoftLimit):
        subscriptions.receive(0.01)
    monkeypatch.undo()
    subscriptions.receive(0.01)
    assert server.address in subscriptions.open, "the next one mends it"
    run(subscriptions.close())
