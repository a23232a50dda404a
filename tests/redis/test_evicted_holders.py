"""Whoever holds for a while hears of its eviction soon, whatever became of the way on which it is told."""

from __future__ import annotations

import pytest

from lockline.backends.redis.scripts import NO_CHANNEL
from tests.contract.scene import Scene
from tests.contract.worlds import Place
from tests.deaf import an_heir_that_never_looked_hears_of_its_eviction, hears_of_its_eviction
from tests.servers.process import wait_for
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
        # Longer than anybody here waits: neither its end nor its next renewal tells of the loss.
        lease = scene.party().lock("x", ttl=300, renew=renew).acquire()

        def told_where() -> bool:
            record = server.command("HGET", "{ll:x}", f"+{lease.id}")
            return record is not None and record.split(" ")[6] != NO_CHANNEL

        wait_for(told_where, 60, "a holder that the server can reach")
        assert scene.evict("x") == 1
        wait_for(lambda: not lease.real.valid, 60, "the loss of the lease")


def test_an_heir_that_never_looked_is_told(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    an_heir_that_never_looked_hears_of_its_eviction(server.url, monkeypatch)
