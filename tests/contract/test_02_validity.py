"""Promise 2: validity counts from before the request was sent, and runs out by itself."""

from __future__ import annotations

import time

import pytest

from lockline import AcquireTimeout, LeaseLost
from lockline.core.claim import Claim, Grant

from ..renewed import end_now, hasten
from .faults import Faults
from .parties import LONG
from .scene import A_MINUTE, Scene


def test_the_holder_trusts_its_lease_for_less_than_the_store_does(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=100).acquire()
    theirs = world.line("x").holders[0].remaining
    # Read after the store's, so that time that passes between makes it less: the margin for drift is a whole second of a hundred.
    mine = lease.remaining()
    assert mine < theirs
    assert mine < 100 * 0.99
    lease.release()


def test_the_time_a_reply_takes_is_not_trusted(world: Scene) -> None:
    alice = world.party()
    faults = Faults(alice)
    faults.delay("enter", 0.2, after=True)
    lease = alice.lock("x", ttl=30, renew=False).acquire()
    assert lease.remaining() <= 30 * 0.99 - 0.2
    lease.release()


def test_the_time_a_renewal_takes_is_not_trusted(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=30, renew=False).acquire()
    Faults(alice).delay("renew", 0.2, after=True)
    lease.extend(30)
    assert lease.remaining() <= 30 * 0.99 - 0.2
    lease.release()


@pytest.mark.needs("has_lines")
def test_a_grant_that_is_pushed_is_trusted_only_as_far_as_the_last_renewal(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    # No renewal is due while this lasts, and one that little is left of would ask for more.
    ttl = 100
    lease = alice.lock("x").acquire()
    faults = Faults(bob)
    faults.fail("renew", times=None)
    (waits,) = world.queue_up("x", lambda: bob.lock("x", ttl=ttl).acquire.start())
    stood = time.monotonic()
    time.sleep(0.3)
    lease.release()
    granted = waits.result()
    since = time.monotonic() - stood
    assert granted.remaining() <= ttl * 0.99 - since
    faults.heal()
    granted.release()


@pytest.mark.needs("has_lines")
def test_a_waiter_whose_own_place_ran_out_is_never_handed_a_dead_lease(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(bob)
    faults.fail("renew", times=None)
    (waits,) = world.queue_up("x", bob.lock("x").acquire.start)
    (live,) = bob.client.real._engine._keeper.books.values()
    live.ends = live.runtime.now()
    world.wait_for(lambda: faults.count("enter") == 2, what="the second place")
    faults.heal()
    lease.release()
    granted = waits.result()
    assert granted.valid
    assert [held.id for held in world.line("x").holders] == [granted.id]
    granted.release()


@pytest.mark.needs("has_lines")
def test_a_turn_that_ran_out_while_it_was_to_be_renewed_is_handed_to_nobody(world: Scene) -> None:
    """Little was left of the waiter's time when its turn came, and no answer made it more before that was over."""
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(bob)
    faults.hang("renew")
    (waits,) = world.queue_up("x", bob.lock("x").acquire.start)
    engine = bob.client.real._engine
    (live,) = engine._keeper.books.values()
    live.ends = live.runtime.now() + 1.0
    lease.release()
    granted = waits.result()
    assert granted.valid
    assert [held.id for held in world.line("x").holders] == [granted.id]
    faults.heal()
    granted.release()
    assert not engine._mine


def test_a_lease_runs_out_with_no_word_from_the_store(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(0.4)
    lease = alice.lock("x", ttl=ttl).acquire()
    Faults(alice).fail("renew", times=None)
    waits = bob.lock("x").acquire.start()
    world.wait_for(lambda: not lease.valid)
    # The old holder knows first: whoever comes next comes after that.
    assert not waits.done or not lease.valid
    with pytest.raises(LeaseLost):
        lease.check()
    waits.result().release()


def test_a_lease_runs_out_while_its_renewal_hangs(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    told: list[bool] = []
    lease = alice.lock("x", ttl=world.ttl(0.4)).acquire()
    lease.on_lost(lambda: told.append(True))
    faults = Faults(alice)
    answer = faults.hold("renew")
    taken = bob.lock("x").acquire(timeout=A_MINUTE)
    assert not lease.valid
    # The renewal has still no answer, and nothing is waited for that could give it one.
    world.wait_for(lambda: told, what="the word of the loss")
    assert faults.count("renew") == 1
    answer.set()
    taken.release()


def test_once_lost_always_lost(world: Scene) -> None:
    alice = world.party()
    ttl = world.ttl(0.2)
    lease = alice.lock("x", ttl=ttl, renew=False).acquire()
    world.wait_for(lambda: not lease.valid)
    for _ in range(3):
        with pytest.raises(LeaseLost):
            lease.extend(5)
        assert not lease.valid
        assert lease.remaining() == 0.0
        assert lease.lost.is_set()


def test_a_late_yes_does_not_bring_a_lease_back(world: Scene) -> None:
    """The store was more patient than the holder's clock: what the holder has been told stays true."""
    alice = world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(alice)
    answer = faults.hold("renew", after=True)
    hasten(lease)
    world.wait_for(lambda: faults.count("renew"), what="a renewal under way")
    end_now(lease)
    assert not lease.valid
    answer.set()
    keeper = alice.client.real._engine._keeper
    world.wait_for(lambda: not any(renewal.worker.alive() for renewal in keeper._renewals), what="its answer")
    assert not lease.valid
    assert lease.remaining() == 0.0


@pytest.mark.flavour("asyncio")
def test_after_a_stall_of_the_loop_the_first_look_says_lost(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=world.ttl(0.2)).acquire()

    def stall() -> bool:
        time.sleep(2 * lease.ttl)
        return bool(lease.real.valid)

    assert alice.do(stall) is False
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_wall_clock_that_steps_changes_nothing(world: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, bob = world.party(), world.party()
    real = time.time
    lease = alice.lock("x").acquire()
    for step in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda step=step: real() + step)
        world.wait_for_renewal(lease)
        with pytest.raises(AcquireTimeout):
            bob.lock("x").acquire(timeout=0.1)
        assert lease.valid
        assert lease.remaining() <= lease.ttl
    monkeypatch.undo()
    lease.release()


def test_extend_makes_a_lease_longer_and_never_shorter(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=300, renew=False).acquire()
    lease.extend(LONG)
    assert 400 < lease.remaining() < LONG
    assert world.line("x").holders[0].remaining > 400
    lease.extend(1)
    assert 400 < lease.remaining() < LONG
    assert world.line("x").holders[0].remaining > 400
    lease.release()


def test_a_lease_without_renewal_gets_its_whole_ttl_after_a_wait(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = 10
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x", ttl=ttl, renew=False).acquire.start())
    # Its place in the line was entered more than a twentieth of its ttl ago.
    time.sleep(0.1 * ttl)
    began = time.monotonic()
    lease.release()
    granted = waits.result()
    remaining, since = granted.remaining(), time.monotonic() - began
    assert remaining > ttl * 0.95 - since
    granted.release()


@pytest.mark.needs("has_lines")
def test_a_grant_that_was_evicted_before_it_was_heard_of_is_no_loss(world: Scene) -> None:
    """Nobody held anything yet: the waiter stands in the line again, and acquire does what it says."""
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    engine = bob.client.real._engine
    real_place = engine.backend.place
    first: list[Claim] = []

    async def evicted_at_once(claim: Claim, until: float) -> object:
        answer = await real_place(claim, until)
        if type(answer) is Grant and not first:
            first.append(claim)
            await engine.backend.leave(claim, engine.runtime.now() + 5)
        return answer

    engine.backend.place = evicted_at_once
    (waits,) = world.queue_up("x", lambda: bob.lock("x", renew=False).acquire.start(timeout=A_MINUTE))
    lease.release()
    granted = waits.result()
    assert first
    assert granted.id != first[0].id
    assert granted.valid
    granted.release()
