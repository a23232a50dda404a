"""Whoever holds for a while hears of its eviction soon, whatever became of the way on which it is told."""

from __future__ import annotations

import time

import pytest

from tests.contract.scene import Scene
from tests.contract.worlds import Place
from tests.deaf import A_WHILE, SOON, TTL, an_heir_that_never_looked_hears_of_its_eviction, hears_of_its_eviction
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.server


@pytest.mark.parametrize("how", ["cut", "strand"])
def test_a_subscription_that_broke_while_nobody_waited_is_made_anew(
    server: RedisServer, flavour: str, how: str
) -> None:
    hears_of_its_eviction(server.url, server.port, flavour, how)


@pytest.mark.parametrize("renew", [True, False])
def test_a_renewal_that_had_to_bring_its_script_along_is_not_the_last_to_say_where_we_listen(
    server: RedisServer, flavour: str, renew: bool
) -> None:
    """On each new server, and after a SCRIPT FLUSH: it was repeated, and so without the channel."""
    with Scene(Place(server.url), flavour) as scene:
        server.command("SCRIPT", "FLUSH")
        lease = scene.party().lock("x", ttl=TTL, renew=renew).acquire()
        time.sleep(1.5 * A_WHILE)
        assert scene.evict("x") == 1
        scene.wait_for(lambda: not lease.real.valid, SOON, "the loss of the lease")


def test_an_heir_that_never_looked_is_told(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    an_heir_that_never_looked_hears_of_its_eviction(server.url, monkeypatch)
