"""A detach or an attach whose answer is lost, late or cut off: never two who trust their lease, and nothing left behind."""

from __future__ import annotations

import pytest

import lockline
from lockline import LeaseLost, NotHeld

from .faults import Faults
from .scene import Scene
from .test_hand_over import pair


def test_a_detach_without_an_answer_leaves_nothing_behind(world: Scene) -> None:
    """Whether it was done or not, nobody has the ticket: what it kept is withdrawn, and the lease is lost or goes on."""
    alice, bob = pair(world)
    for applied in (False, True):
        lease = alice.lock("x", ttl=world.ttl(1)).acquire()
        faults = Faults(alice)
        faults.fail("hand_over", after=applied)
        with pytest.raises(lockline.BackendUnavailable):
            lease.detach(60)
        faults.heal()
        if applied:
            assert lease.lost.wait(10)
            bob.lock("x").acquire(timeout=10).release()
        else:
            assert lease.valid
            assert not world.line("x").holders[0].detached
            lease.release()
        assert world.names() == []


def test_a_detach_without_an_answer_leaves_no_two_who_trust_their_lease(world: Scene) -> None:
    """It was done, and what it kept is withdrawn: whoever comes then comes alone, whether the one who detached hears of it or not."""
    alice, bob = pair(world)
    lease = alice.lock("x", ttl=60).acquire()
    faults = Faults(alice)
    faults.fail("hand_over", after=True)
    faults.fail("renew", times=None)
    with pytest.raises(lockline.BackendUnavailable):
        lease.detach(60)
    other = bob.lock("x").acquire(timeout=10)
    assert not lease.valid
    with pytest.raises(LeaseLost, match="detach"):
        lease.check()
    assert lease.lost.wait(10)
    other.validate()
    other.release()


def test_nobody_trusts_a_lease_whose_detach_is_under_way(world: Scene) -> None:
    """The place is kept for less time than the answer takes."""
    alice, bob = pair(world)
    lease = alice.lock("x", ttl=60).acquire()
    answer = Faults(alice).hold("hand_over", after=True)
    detaching = lease.detach.start(world.ttl(0.3))
    other = bob.lock("x").acquire(timeout=20)
    assert not lease.valid
    answer.set()
    with pytest.raises(NotHeld):
        bob.client.attach(detaching.result())
    other.release()


def test_a_detach_that_was_cut_short_before_it_was_done_leaves_the_lease_as_it_was(world: Scene) -> None:
    alice, bob = pair(world)
    ttl = world.ttl(1)
    lease = alice.lock("x", ttl=ttl).acquire()
    faults = Faults(alice)
    faults.fail("hand_over", error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        lease.detach(60)
    world.outlive(ttl)
    assert lease.valid
    assert not lease.lost.is_set()
    bob.client.attach(lease.detach(60)).release()
    assert world.names() == []


def test_a_client_remembers_nothing_of_what_it_handed_over(world: Scene) -> None:
    alice, bob = pair(world)
    places = getattr(getattr(alice.client.real._engine.backend, "_steps", None), "_places", {})
    for _ in range(5):
        bob.client.attach(alice.lock("x").acquire().detach(60)).release()
    assert not places
    assert not alice.client.real._engine._keeper.books


def test_a_renewal_that_comes_between_is_no_loss(world: Scene) -> None:
    alice, bob = pair(world)
    ttl = world.ttl(1.5)
    lease = alice.lock("x", ttl=ttl).acquire()
    told: list[object] = []
    lease.real.on_lost(told.append)
    Faults(alice).delay("hand_over", ttl * 0.5, after=True)
    ticket = lease.detach(20)
    assert not told
    assert not lease.lost.is_set()
    bob.client.attach(ticket).release()


def test_an_attach_without_an_answer_holds_nothing(world: Scene) -> None:
    alice, bob = pair(world)
    for applied in (False, True):
        ticket = alice.lock("x").acquire().detach(60)
        faults = Faults(bob)
        faults.fail("hand_over", after=applied)
        with pytest.raises(lockline.BackendUnavailable):
            bob.client.attach(ticket)
        faults.heal()
        if applied:
            bob.lock("x").acquire(timeout=10).release()
        else:
            bob.client.attach(ticket).release()
        assert world.names() == []
