"""Whoever holds for a while hears of its eviction soon, also where every connection that would have told it was broken meanwhile."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.contract.scene import Scene
from tests.contract.worlds import Place
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer

from .servers import Servers, servers

pytestmark = pytest.mark.server


LONG = 300.0
"""Longer than anybody here waits: the end of the lease does not tell of its loss."""


def listeners(node: RedisServer) -> set[str]:
    """The connections that are subscribed to something."""
    with node.client() as client:
        return {each["id"] for each in client.client_list() if int(each["sub"]) > 0}


def wait_for_others(three: Servers, before: list[set[str]]) -> None:
    """Wait until there is a subscription at each server that was not there before."""
    wait_for(
        lambda: all(listeners(node) - known for node, known in zip(three.nodes, before, strict=True)),
        60,
        "new subscriptions",
    )


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_subscriptions_that_broke_while_nobody_waited_are_made_anew(flavour: str) -> None:
    with servers(3, longest=LONG) as three, Scene(Place(three.url), flavour) as scene:
        lease = scene.party().lock("x", ttl=LONG, renew=False).acquire()
        wait_for(lambda: all(map(listeners, three.nodes)), 60, "a holder that listens")
        before = list(map(listeners, three.nodes))
        for node in three.nodes:
            node.command("CLIENT", "KILL", "TYPE", "pubsub")
        wait_for_others(three, before)
        assert scene.evict("x") == 1
        wait_for(lambda: not lease.real.valid, 60, "the loss of the lease")


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_connections_that_went_silent_while_nobody_asked_for_anything_are_made_anew(flavour: str) -> None:
    with ExitStack() as stack:
        three = stack.enter_context(servers(3, longest=LONG))
        proxies = [stack.enter_context(Proxy(("127.0.0.1", three[number].port))) for number in range(3)]
        far = three.url
        for number, proxy in enumerate(proxies):
            far = far.replace(f":{three[number].port}", f":{proxy.port}")
        near, scene = (stack.enter_context(Scene(Place(url), flavour)) for url in (three.url, far))
        lease = scene.party().lock("x", ttl=LONG, renew=False).acquire()
        wait_for(lambda: all(map(listeners, three.nodes)), 60, "a holder that listens")
        before = list(map(listeners, three.nodes))
        for proxy in proxies:
            proxy.strand()
        wait_for_others(three, before)
        assert near.evict("x") == 1
        wait_for(lambda: not lease.real.valid, 60, "the loss of the lease")
