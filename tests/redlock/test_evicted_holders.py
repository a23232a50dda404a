"""Whoever holds for a while hears of its eviction soon, also where every connection that would have told it was broken meanwhile."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest

from tests.contract.scene import Scene
from tests.contract.worlds import Place
from tests.deaf import A_WHILE, SOON
from tests.servers.proxy import Proxy

from .servers import servers

pytestmark = pytest.mark.server


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_subscriptions_that_broke_while_nobody_waited_are_made_anew(flavour: str) -> None:
    with servers(3) as three, Scene(Place(three.url), flavour) as scene:
        lease = scene.party().lock("x", ttl=60, renew=False).acquire()
        time.sleep(A_WHILE)
        for number in range(3):
            three[number].command("CLIENT", "KILL", "TYPE", "pubsub")
        time.sleep(A_WHILE)
        assert scene.evict("x") == 1
        scene.wait_for(lambda: not lease.real.valid, SOON, "the loss of the lease")


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_connections_that_went_silent_while_nobody_asked_for_anything_are_made_anew(flavour: str) -> None:
    with ExitStack() as stack:
        three = stack.enter_context(servers(3))
        proxies = [stack.enter_context(Proxy(("127.0.0.1", three[number].port))) for number in range(3)]
        far = three.url
        for number, proxy in enumerate(proxies):
            far = far.replace(f":{three[number].port}", f":{proxy.port}")
        near, scene = (stack.enter_context(Scene(Place(url), flavour)) for url in (three.url, far))
        lease = scene.party().lock("x", ttl=60, renew=False).acquire()
        time.sleep(A_WHILE)
        for proxy in proxies:
            proxy.strand()
        time.sleep(2 * A_WHILE)
        assert near.evict("x") == 1
        near.wait_for(lambda: not lease.real.valid, SOON, "the loss of the lease")
