"""A detach or an attach whose answer is lost, late or cut off: never two who trust their lease, and nothing left behind."""

from __future__ import annotations

import time

import pytest

import lockline
from lockline import LeaseLost, NotHeld
from lockline.core import keeper

from ..renewed import hasten
from .faults import Faults
from .parties import LONG
from .scene import A_MINUTE, Scene

pytestmark = pytest.mark.needs("hands_over")


def test_a_detach_without_an_answer_leaves_nothing_behind(world: Scene) -> None:
    """Whether it was done or not, nobody has the ticket: what it kept is withdrawn, and the lease is lost or goes on."""
    alice, bob = world.party(), world.party()
    for applied in (False, True):
        lease = alice.lock("x").acquire()
        faults = Faults(alice)
        faults.fail("hand_over", after=applied)
        with pytest.raises(lockline.BackendUnavailable):
            lease.detach(LONG)
        faults.heal()
        if applied:
            assert lease.lost.wait(A_MINUTE)
            bob.lock("x").acquire(timeout=A_MINUTE).release()
        else:
            assert lease.valid
            assert not world.line("x").holders[0].detached
            lease.release()
        assert world.names() == []


def test_a_detach_without_an_answer_leaves_no_two_who_trust_their_lease(world: Scene) -> None:
    """It was done, and what it kept is withdrawn: whoever comes then comes alone, whether the one who detached hears of it or not."""
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(alice)
    faults.fail("hand_over", after=True)
    faults.fail("renew", times=None)
    with pytest.raises(lockline.BackendUnavailable):
        lease.detach(LONG)
    other = bob.lock("x").acquire(timeout=A_MINUTE)
    assert not lease.valid
    with pytest.raises(LeaseLost, match="detach"):
        lease.check()
    assert lease.lost.wait(A_MINUTE)
    other.validate()
    other.release()


def test_nobody_trusts_a_lease_whose_detach_is_under_way(world: Scene) -> None:
    """The place is kept for less time than the answer takes."""
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    answer = Faults(alice).hold("hand_over", after=True)
    detaching = lease.detach.start(world.ttl(0.3))
    other = bob.lock("x").acquire(timeout=A_MINUTE)
    assert not lease.valid
    answer.set()
    with pytest.raises(NotHeld):
        bob.client.attach(detaching.result())
    other.release()


def test_a_detach_that_was_cut_short_before_it_was_done_leaves_the_lease_as_it_was(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(alice)
    faults.fail("hand_over", error=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        lease.detach(LONG)
    world.wait_for_renewal(lease)
    assert lease.valid
    assert not lease.lost.is_set()
    bob.client.attach(lease.detach(LONG)).release()
    assert world.names() == []


def test_a_client_remembers_nothing_of_what_it_handed_over(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    places = getattr(getattr(alice.client.real._engine.backend, "_steps", None), "_places", {})
    for _ in range(5):
        bob.client.attach(alice.lock("x").acquire().detach(LONG)).release()
    assert not places
    assert not alice.client.real._engine._keeper.books


def test_a_renewal_that_comes_between_is_no_loss(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    told: list[object] = []
    lease.real.on_lost(told.append)
    faults = Faults(alice)
    answer = faults.hold("hand_over", after=True)
    detaching = lease.detach.start(LONG)
    world.wait_for(lambda: faults.count("hand_over"), what="the detach")
    hasten(lease)
    time.sleep(1.5 * keeper.TICK)  # the renewer has looked round meanwhile
    answer.set()
    ticket = detaching.result()
    assert not told
    assert not lease.lost.is_set()
    bob.client.attach(ticket).release()


def test_an_attach_without_an_answer_holds_nothing(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    for applied in (False, True):
        ticket = alice.lock("x").acquire().detach(LONG)
        faults = Faults(bob)
        faults.fail("hand_over", after=applied)
        with pytest.raises(lockline.BackendUnavailable):
            bob.client.attach(ticket)
        faults.heal()
        if applied:
            bob.lock("x").acquire(timeout=A_MINUTE).release()
        else:
            bob.client.attach(ticket).release()
        assert world.names() == []
