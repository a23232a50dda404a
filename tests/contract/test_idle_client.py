"""A client that has asked for nothing for longer than its ttl works at once, in every way."""

from __future__ import annotations

import pytest

from lockline import LeaseLost
from lockline.core import keeper, worker

from .scene import Scene


def test_a_client_that_was_idle_for_two_ttls_gets_a_free_lock(world: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes two ttls: the clients have to be idle for longer than their store trusts them without a word."""
    # By then also what runs in the background has ended.
    monkeypatch.setattr(keeper, "LINGER", 0.5)
    monkeypatch.setattr(worker, "LINGER", 0.5)
    ttl = world.ttl(2.0 if world.world.sessions else 0.2)
    ways = {"try": world.party(), "no time": world.party(), "wait": world.party()}
    for way, party in ways.items():
        party.lock(way, ttl=ttl).acquire().release()
    world.outlive(2 * ttl)
    for way, party in ways.items():
        lock = party.lock(way, ttl=60)
        lease = lock.try_acquire() if way == "try" else lock.acquire(timeout=0 if way == "no time" else None)
        assert lease is not None, way
        assert lease.valid, way
        assert [held.token for held in party.client.inspect(way).holders] == [lease.token]
        lease.extend(60)
        assert party.client.evict(way) == 1
        with pytest.raises(LeaseLost):
            lease.release()
