"""A request that is repeated, or arrives late, does its work once."""

from __future__ import annotations

import pytest

import lockline
from lockline.backends.redis.scripts import EVICT
from tests.servers.process import wait_for

from .conftest import Town

pytestmark = pytest.mark.server


def test_an_eviction_whose_reply_gets_lost_spares_the_next_holder(town: Town) -> None:
    alice, bob, operator = town.near(), town.near(), town.far()
    lease = alice.lock("x").acquire()
    waiting = bob.lock("x").acquire.start()
    town.direct.wait_for_line("x", holders=1, waiters=1)
    operator.client.evict("nothing")
    town.proxy.drop_reply(EVICT.sha.encode())
    assert operator.client.evict("x") == 1
    assert town.proxy.lost == 1
    next_lease = waiting.result(60)
    assert lease.lost.wait(60)
    assert [held.token for held in town.direct.line("x").holders] == [next_lease.token]
    next_lease.release()


def test_an_eviction_is_done_again_when_it_is_asked_for_again(town: Town) -> None:
    for party in (town.near(), town.near()):
        lease = party.lock("x").acquire()
        assert town.direct.evict("x") == 1
        with pytest.raises(lockline.LeaseLost):
            lease.release()
    assert town.direct.evict("x") == 0


@pytest.mark.parametrize("others", [0, 1])
def test_a_request_that_arrives_after_the_release_takes_nothing(town: Town, others: int) -> None:
    alice, bob = town.far(socket_timeout=0.3), town.near()
    alice.lock("warm").acquire().release()
    # The first try is long under way; the second is answered.
    town.proxy.strand()
    lease = alice.lock("x", ttl=30).acquire(timeout=60)
    waiting = [bob.lock("x").acquire.start() for _ in range(others)]
    town.direct.wait_for_line("x", holders=1, waiters=others)
    lease.release()
    for each in waiting:
        each.result(60).release()
    before = town.server.command("INFO", "commandstats")["cmdstat_evalsha"]["calls"]
    town.proxy.deliver()
    wait_for(
        lambda: town.server.command("INFO", "commandstats")["cmdstat_evalsha"]["calls"] > before, 60, "the late request"
    )
    assert not town.direct.line("x").claims
