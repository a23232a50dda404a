"""Promise 3: no answer is its own answer; what may have been applied is withdrawn or can be repeated."""

from __future__ import annotations

import time

import pytest

from lockline import AcquireTimeout, BackendUnavailable, LeaseLost, NotHeld
from lockline.core import waiting
from lockline.core.claim import Waiting

from .faults import Faults
from .scene import A_MINUTE, Scene


@pytest.mark.parametrize("applied", [False, True], ids=["request lost", "reply lost"])
def test_an_acquire_without_an_answer_leaves_nothing_in_the_line(world: Scene, applied: bool) -> None:
    alice, bob = world.party(), world.party()
    Faults(alice).fail("enter", after=applied, times=None)
    with pytest.raises(BackendUnavailable):
        alice.lock("x").acquire(timeout=0.2)
    world.wait_until_free("x")
    bob.lock("x").acquire(timeout=A_MINUTE).release()


@pytest.mark.parametrize("applied", [False, True], ids=["request lost", "reply lost"])
def test_a_try_without_an_answer_leaves_nothing_in_the_line(world: Scene, applied: bool) -> None:
    alice = world.party()
    Faults(alice).fail("enter", after=applied)
    with pytest.raises(BackendUnavailable):
        alice.lock("x").try_acquire()
    world.wait_until_free("x")


@pytest.mark.core
@pytest.mark.parametrize("applied", [False, True], ids=["request lost", "reply lost"])
def test_an_acquire_asks_again_until_its_own_deadline(world: Scene, applied: bool) -> None:
    """A store that had no answer twice, or no majority, may have one a moment later: a timeout says how long to ask."""
    alice = world.party()
    faults = Faults(alice)
    faults.fail("enter", after=applied, times=2)
    lease = alice.lock("x").acquire(timeout=A_MINUTE)
    assert faults.count("enter") == 3
    lease.release()
    world.wait_until_free("x")


@pytest.mark.core
def test_a_withdrawal_that_fails_too_is_repeated_until_the_claim_is_gone(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    faults = Faults(alice)
    faults.fail("enter", after=True, times=None)
    faults.fail("leave", times=2)
    with pytest.raises(BackendUnavailable):
        alice.lock("x").acquire(timeout=0.01)
    bob.lock("x").acquire(timeout=A_MINUTE).release()


def test_a_release_that_did_not_arrive_can_be_repeated(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(alice)
    faults.fail("leave", times=1)
    with pytest.raises(BackendUnavailable):
        lease.release()
    lease.release()
    with pytest.raises(NotHeld):
        lease.release()
    bob.lock("x").acquire(timeout=A_MINUTE).release()


def test_a_release_whose_reply_was_lost_can_be_repeated(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    Faults(alice).fail("leave", after=True)
    with pytest.raises(BackendUnavailable):
        lease.release()
    # The lock is free already and somebody else has it: the repeat must not touch them.
    taken = bob.lock("x").acquire(timeout=A_MINUTE)
    lease.release()
    assert taken.valid
    assert [held.id for held in world.line("x").holders] == [taken.id]
    taken.release()


@pytest.mark.core
def test_a_release_that_nobody_repeats_is_repeated_by_the_keeper(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    Faults(alice).fail("leave", times=2)
    with pytest.raises(BackendUnavailable):
        lease.release()
    assert not lease.valid
    bob.lock("x").acquire(timeout=A_MINUTE).release()


def test_a_hundred_failed_tries_with_failing_clean_up_leave_no_ghost(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(bob)
    faults.fail("leave", times=100)
    for number in range(100):
        faults.fail("enter", after=bool(number % 2))
        with pytest.raises(BackendUnavailable):
            bob.lock("x").try_acquire()
    lease.release()
    faults.heal()
    # Long before any of them could expire.
    carol.lock("x").acquire(timeout=A_MINUTE).release()
    world.wait_until_free("x")


def test_an_acquire_that_times_out_leaves_the_line(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    bob.lock("warm").acquire().release()
    for _ in range(5):
        with pytest.raises(AcquireTimeout):
            bob.lock("x").acquire(timeout=0.1)
        assert len(world.line("x").claims) == 1
    lease.release()
    assert not world.line("x").claims


@pytest.mark.core
def test_an_acquire_that_times_out_without_reaching_the_store_leaves_the_line_later(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    bob.lock("warm").acquire().release()
    faults = Faults(bob)
    faults.fail("leave", times=2)
    with pytest.raises(AcquireTimeout):
        bob.lock("x").acquire(timeout=0.3)
    world.wait_for(lambda: len(world.line("x").claims) == 1, what="the withdrawal")
    lease.release()


def test_the_timeout_says_who_holds_the_lock_and_how_long_one_waited(
    world: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy server may take longer than that to say who holds it.
    monkeypatch.setattr(waiting, "LAST_LOOK", A_MINUTE)
    alice, bob, carol = world.party(), world.party(), world.party()
    lease = alice.lock("billing").acquire()
    (waits,) = world.queue_up("billing", lambda: bob.lock("billing").acquire.start())
    began = time.monotonic()
    with pytest.raises(AcquireTimeout) as caught:
        carol.lock("billing").acquire(timeout=0.3)
    error = caught.value
    assert error.name == "billing"
    assert 0.3 <= error.waited <= time.monotonic() - began
    assert error.ahead == 2
    assert str(error).startswith(f"'billing' stayed taken for {error.waited:.1f} s: ")
    assert "held by alice since " in str(error)
    assert f"token {lease.token}; 2 ahead of you" in str(error)
    assert isinstance(error, TimeoutError)
    lease.release()
    waits.result().release()


@pytest.mark.core
@pytest.mark.parametrize("timeout", [0, 0.2])
def test_the_timeout_is_kept(world: Scene, timeout: float) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    bob.lock("warm").acquire().release()
    began = time.monotonic()
    # The holder stays, and its ttl is longer than anybody waits: only the timeout ends this.
    with pytest.raises(AcquireTimeout):
        bob.lock("x").acquire(timeout=timeout)
    assert time.monotonic() - began >= timeout
    lease.release()
    bob.lock("x").acquire(timeout=timeout).release()


@pytest.mark.core
def test_a_store_that_is_down_at_the_start_is_an_error_and_never_a_lock(world: Scene) -> None:
    alice = world.party()
    Faults(alice).fail("enter", times=None)
    ran = []
    with pytest.raises(BackendUnavailable), alice.lock("x", ttl=0.5):  # without a timeout it asks for a ttl
        ran.append("body")
    assert not ran
    with pytest.raises(BackendUnavailable):
        alice.lock("x").try_acquire()


@pytest.mark.core
def test_a_waiter_outlives_a_store_that_is_away_for_a_moment(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(bob)
    faults.fail("place", times=3)
    (waits,) = world.queue_up("x", lambda: bob.lock("x").acquire.start())
    lease.release()
    waits.result().release()


@pytest.mark.core
def test_a_waiter_of_a_store_that_stays_away_is_told_so(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(bob)
    faults.fail("place", times=None)
    faults.fail("renew", times=None)
    ttl = world.ttl(0.4)
    with pytest.raises(BackendUnavailable):
        bob.lock("x", ttl=ttl).acquire()
    faults.heal()
    world.wait_for(lambda: len(world.line("x").claims) == 1, what="the withdrawal")
    lease.release()


def test_the_same_claim_entered_twice_stands_once(world: Scene) -> None:
    """A hidden repeat in a client library, or a proxy that sends a request twice, changes nothing."""
    alice, bob = world.party(), world.party()
    backend = alice.client.real._engine.backend
    inner = backend.enter

    entered: list[object] = []

    async def twice(claim: object, *, wait: bool, until: float) -> object:
        first = await inner(claim, wait=wait, until=until)
        second = await inner(claim, wait=wait, until=until)
        entered.append(claim)
        if isinstance(first, Waiting) and isinstance(second, Waiting):
            first = first._replace(look_by=second.look_by)  # which counts from the answer; where it stands does not
        assert type(first) is type(second)
        assert first == second
        return second

    backend.enter = twice
    lease = alice.lock("x").acquire()
    assert len(world.line("x").claims) == 1
    waits = world.sibling(alice).lock("x").acquire.start()
    world.wait_for_line("x", holders=1, waiters=1)
    world.wait_for(lambda: len(entered) == 2)  # the turn may not come between the one and the other
    lease.release()
    waits.result().release()
    assert not world.line("x").claims
    bob.lock("x").acquire(timeout=A_MINUTE).release()


@pytest.mark.core
def test_an_error_in_release_after_loss_is_still_told_as_loss(world: Scene) -> None:
    alice = world.party()
    ttl = world.ttl(0.2)
    lease = alice.lock("x", ttl=ttl, renew=False).acquire()
    world.wait_for(lambda: not lease.valid)
    Faults(alice).fail("leave", times=1)
    with pytest.raises(LeaseLost):
        lease.release()
