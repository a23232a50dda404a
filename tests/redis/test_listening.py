"""Whoever waits is reached: the subscription stands before anybody relies on it, and a bad one is found out."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import pytest
import redis

from lockline import BackendUnavailable
from lockline.backends.redis.subscription import AsyncioSubscriptions, BlockingSubscriptions
from lockline.backends.redis.target import understand
from lockline.core.waiting import Hints
from lockline.runtime import clock
from lockline.runtime.blocking import BlockingRuntime, run
from tests.contract.scene import Scene
from tests.contract.worlds import Place
from tests.deaf import an_eviction_that_is_read_with_the_turn_is_heard
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer, a_redis

pytestmark = pytest.mark.server


class Looks(Hints):
    """Counts how often everybody is made to look."""

    def __init__(self) -> None:
        super().__init__(BlockingRuntime(), None, lambda: None)
        self.times = 0

    def heard_all(self) -> None:
        self.times += 1


S = TypeVar("S", BlockingSubscriptions, AsyncioSubscriptions)


def subscriptions_of(kind: type[S], flavour: str, server: RedisServer, looks: Looks) -> S:
    """Subscriptions that note in `looks` when everybody is made to look."""
    subscriptions = kind(understand(server.url, flavour, {}), "ll", lambda message: message)
    subscriptions.hints = looks
    return subscriptions


def test_a_user_who_may_not_listen_is_refused_at_once(server: RedisServer, flavour: str) -> None:
    """New users of Redis 7 may not, unless they are told so: waiting would never end."""
    server.command("ACL", "SETUSER", "deaf", "on", ">p", "~*", "resetchannels", "+@all")
    elsewhere = Place(f"redis://deaf:p@127.0.0.1:{server.port}")
    try:
        with Scene(Place(server.url), flavour) as near, Scene(elsewhere, flavour) as deaf:
            held = near.party().lock("x").acquire()
            waiting = deaf.party().lock("x").acquire.start()
            with pytest.raises(BackendUnavailable, match=r"NOPERM.*docs/backends/redis\.md"):
                waiting.result(60)
            near.wait_for_line("x", holders=1, waiters=0)
            held.release()
    finally:
        server.command("ACL", "DELUSER", "deaf")


def test_what_strangers_publish_hurts_nobody(server: RedisServer, flavour: str) -> None:
    with Scene(Place(server.url), flavour) as scene:
        alice, bob = scene.party(), scene.party()
        held = alice.lock("x").acquire()
        (waits,) = scene.queue_up("x", lambda: bob.lock("x").acquire.start())
        for channel in server.command("PUBSUB", "CHANNELS"):
            for junk in (b"\xff\xfe", b"", b"x" * 100_000, b"\xff:1 2 3"):
                server.command("PUBLISH", channel, junk)
        held.release()
        waits.result(60).release()


def test_nobody_is_sent_to_a_channel_before_the_server_has_confirmed_it(server: RedisServer) -> None:
    """A waiter on a channel that the server does not know yet would be taken for dead."""

    async def story() -> None:
        with Proxy(server.address) as proxy:
            proxy.delay(0.05)
            address = ("127.0.0.1", proxy.port)
            subscriptions = subscriptions_of(AsyncioSubscriptions, "asyncio", server, Looks())
            channel = await subscriptions.listen(address, clock.now() + 60)
            assert server.command("PUBSUB NUMSUB", channel)[0][1] == 1
            await subscriptions.close()

    asyncio.run(story())


def test_a_deaf_subscription_is_found_out_while_another_is_busy(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockline.backends.resp.subscription.QUIET", 0.2)
    with a_redis() as other, Proxy(other.address) as proxy, redis.Redis(port=server.port) as talker:
        looks = Looks()
        subscriptions = subscriptions_of(BlockingSubscriptions, "blocking", server, looks)
        busy = run(subscriptions.listen(server.address, clock.now() + 60))
        run(subscriptions.listen(("127.0.0.1", proxy.port), clock.now() + 60))
        proxy.strand()

        def found_out() -> bool:
            talker.publish(busy, "x")
            subscriptions.receive(0.1)
            return looks.times > 0

        wait_for(found_out, 60, "the silence of one among two")
        run(subscriptions.close())


def test_all_look_when_one_waiter_makes_a_broken_subscription_anew(server: RedisServer) -> None:
    """A message may have been missed by any of them, not only by the one that found out."""
    looks = Looks()
    subscriptions = subscriptions_of(BlockingSubscriptions, "blocking", server, looks)
    run(subscriptions.listen(server.address, clock.now() + 60))
    server.command("CLIENT", "KILL", "TYPE", "pubsub")

    def lost() -> bool:
        subscriptions.drain()
        return server.address not in subscriptions.open

    wait_for(lost, 60, "the end of the subscription")
    run(subscriptions.listen(server.address, clock.now() + 60))
    subscriptions.receive(0)
    assert looks.times
    run(subscriptions.close())


def test_all_look_when_a_task_overtakes_the_mending_of_a_subscription(server: RedisServer) -> None:
    async def story() -> None:
        looks = Looks()
        with Proxy(server.address) as proxy:
            address = ("127.0.0.1", proxy.port)
            subscriptions = subscriptions_of(AsyncioSubscriptions, "asyncio", server, looks)
            await subscriptions.listen(address, clock.now() + 60)
            # Long enough under way to be overtaken.
            proxy.delay(0.03)
            proxy.cut()
            async with asyncio.timeout(60):
                while address in subscriptions.open and not looks.times:  # noqa: ASYNC110 - it is the state that counts
                    await asyncio.sleep(0.001)
            await subscriptions.listen(address, clock.now() + 60)
            assert looks.times
            await subscriptions.close()

    asyncio.run(story())


def test_an_eviction_that_is_read_before_the_one_whose_turn_it_is_has_begun_is_heard(
    server: RedisServer, flavour: str
) -> None:
    an_eviction_that_is_read_with_the_turn_is_heard(
        server.url, flavour, lambda backend: backend._subscriptions, lambda subscriptions: subscriptions.open
    )
