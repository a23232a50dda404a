"""A waiter is notified of its turn, whatever brings it: with these ttls its own renewals would find it after three minutes."""

from __future__ import annotations

import pytest

from lockline import LeaseLost

from .scene import Scene

LONG = 600.0


def test_an_eviction_notifies_the_next_claim(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x", ttl=LONG).acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x", ttl=LONG).acquire.start())
    assert world.evict("x") == 1
    waits.result(60).release()
    with pytest.raises(LeaseLost):
        lease.release()
