"""Promise 12: no debris: every key, row and node that a claim made is gone after it."""

from __future__ import annotations

import time
from functools import partial

import pytest

from lockline import AcquireTimeout, LeaseLost

from .scene import KINDS, Scene


def nothing_left(world: Scene) -> None:
    world.wait_for(lambda: world.names() == [], what="an empty list")
    world.wait_for(lambda: world.world.debris(world.place) == [], what=f"no debris: {world.world.debris(world.place)}")


@pytest.mark.parametrize("kind", KINDS)
def test_after_release(world: Scene, kind: str) -> None:
    alice = world.party()
    for number in range(5):
        with getattr(alice, kind)(f"x{number}"):
            assert f"x{number}" in world.names()
    nothing_left(world)


@pytest.mark.needs("semaphores")
def test_after_permits(world: Scene) -> None:
    alice = world.party()
    permits = [alice.semaphore("x", limit=5).acquire() for _ in range(5)]
    for permit in permits:
        permit.release()
    nothing_left(world)


def test_after_a_wait_that_timed_out_and_a_try_that_failed(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    bob.lock("x").acquire().release()
    with alice.lock("x"):
        with pytest.raises(AcquireTimeout):
            bob.lock("x").acquire(timeout=0.1)
        assert bob.lock("x").try_acquire() is None
    nothing_left(world)


@pytest.mark.needs("read_write")
def test_after_a_write_that_failed(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    with alice.lock("x"):
        assert bob.write("x").try_acquire() is None
    nothing_left(world)


@pytest.mark.needs("read_write")
def test_after_hand_overs(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    lease = alice.write("x").acquire()
    waiting = world.queue_up("x", lambda: bob.read("x").acquire.start(), lambda: carol.write("x").acquire.start())
    lease.downgrade()
    lease.release()
    for pending in waiting:
        pending.result().release()
    nothing_left(world)


def test_after_eviction(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    world.evict("x")
    with pytest.raises(LeaseLost):
        lease.release()
    nothing_left(world)


def test_after_expiry_nothing_is_listed(world: Scene) -> None:
    alice = world.party()
    ttl = world.ttl(0.2)
    leases = [alice.lock(f"x{number}", ttl=ttl, renew=False).acquire() for number in range(3)]
    time.sleep(ttl)
    world.wait_for(lambda: world.names() == [])
    assert not world.line("x0").claims
    for lease in leases:
        with pytest.raises(LeaseLost):
            lease.release()
    nothing_left(world)


def test_after_close(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    leases = [alice.lock(f"x{number}").acquire() for number in range(3)]
    waits = world.sibling(bob).lock("x0").acquire.start()
    world.wait_for_line("x0", waiters=1)
    bob.client.close()
    alice.client.close()
    with pytest.raises(Exception, match="closed"):
        waits.result()
    assert not any(lease.valid for lease in leases)
    nothing_left(world)


def test_a_client_remembers_nothing_of_what_it_gave_back(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    for number in range(20):
        lease = alice.lock(f"x{number}").acquire()
        waits = bob.lock(f"x{number}").acquire.start()
        lease.release()
        waits.result().release()
        with pytest.raises(AcquireTimeout), alice.lock(f"y{number}"):
            bob.lock(f"y{number}").acquire(timeout=0)
    for party in (alice, bob):
        engine = party.client.real._engine
        assert not engine._mine
        assert not engine._keeper.books
        world.wait_for(partial(lambda keeper: not keeper._kept and not keeper.removals, engine._keeper))
