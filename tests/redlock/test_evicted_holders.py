"""Whoever holds for a while hears of its eviction soon, also where every connection that would have told it was broken meanwhile."""

from __future__ import annotations

import time

import pytest

from tests.contract.scene import Scene
from tests.contract.worlds import Place
from tests.deaf import A_WHILE, SOON

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
