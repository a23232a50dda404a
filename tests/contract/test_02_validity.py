"""Promise 2: validity counts from before the request was sent, and runs out by itself."""

from __future__ import annotations

import time

import pytest

from lockline import AcquireTimeout, LeaseLost
from lockline.core.claim import Claim, Grant

from ..calm import calm
from .faults import Faults
from .scene import Scene


def test_the_holder_trusts_its_lease_for_less_than_the_store_does(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=5).acquire()
    theirs = world.line("x").holders[0].remaining
    mine = lease.remaining()
    assert mine < theirs + 0.02
    assert mine < 5 * 0.99
    lease.release()


def test_the_time_a_reply_takes_is_not_trusted(world: Scene) -> None:
    alice = world.party()
    faults = Faults(alice)
    faults.delay("enter", 0.2, after=True)
    lease = alice.lock("x", ttl=1.0, renew=False).acquire()
    assert lease.remaining() <= 0.8
    lease.release()


def test_the_time_a_renewal_takes_is_not_trusted(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=2.0, renew=False).acquire()
    Faults(alice).delay("renew", 0.2, after=True)
    lease.extend(2.0)
    assert lease.remaining() <= 1.8
    lease.release()


def test_a_grant_that_is_pushed_is_trusted_only_as_far_as_the_last_renewal(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(1.0)
    lease = alice.lock("x").acquire()
    faults = Faults(bob)
    faults.fail("renew", times=None)
    (waits,) = world.queue_up("x", lambda: bob.lock("x", ttl=ttl).acquire.start())
    stood = time.monotonic()
    time.sleep(ttl * 0.4)
    lease.release()
    granted = waits.result(2)
    since = time.monotonic() - stood
    assert granted.remaining() <= ttl - since
    faults.heal()
    granted.release()


def test_a_waiter_whose_own_place_ran_out_is_never_handed_a_dead_lease(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(0.6)
    lease = alice.lock("x").acquire()
    faults = Faults(bob)
    faults.fail("renew", times=None)
    waits = bob.lock("x", ttl=ttl).acquire.start()
    # In the middle of a place's life, not where the second one ends.
    time.sleep(1.5 * ttl)
    faults.heal()
    lease.release()
    granted = waits.result(3)
    assert granted.valid
    assert [held.id for held in world.line("x").holders] == [granted.id]
    granted.release()


def test_a_turn_that_ran_out_while_it_was_to_be_renewed_is_handed_to_nobody(world: Scene) -> None:
    """Little was left of the waiter's time when its turn came, and no answer made it more before that was over."""
    if not world.world.has_lines:
        pytest.skip("whoever waits has no time that could run out")
    alice, bob = world.party(), world.party()
    ttl = world.ttl(1.0)
    lease = alice.lock("x").acquire()
    faults = Faults(bob)
    faults.hang("renew")
    (waits,) = world.queue_up("x", bob.lock("x", ttl=ttl).acquire.start)
    engine = bob.client.real._engine
    (live,) = engine._keeper.books.values()
    world.wait_for(lambda: live.deadline - live.runtime.now() < ttl / 4, 2 * ttl, "the last quarter of its time")
    lease.release()
    granted = waits.result(10)
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
    world.wait_for(lambda: not lease.valid, 2 * ttl)
    # The old holder knows first: whoever comes next comes after that.
    assert not waits.done or not lease.valid
    with pytest.raises(LeaseLost):
        lease.check()
    waits.result(ttl + 1).release()


def test_a_lease_runs_out_while_its_renewal_hangs(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(0.4)
    told: list[float] = []
    began = calm()
    lease = alice.lock("x", ttl=ttl).acquire()
    lease.on_lost(lambda: told.append(calm() - began))
    Faults(alice).hang("renew")
    taken = bob.lock("x").acquire(timeout=ttl + 20)
    assert not lease.valid
    world.wait_for(lambda: told, 1.0)
    assert told[0] <= ttl + 0.15
    taken.release()


def test_once_lost_always_lost(world: Scene) -> None:
    alice = world.party()
    ttl = world.ttl(0.2)
    lease = alice.lock("x", ttl=ttl, renew=False).acquire()
    world.wait_for(lambda: not lease.valid, 2 * ttl)
    for _ in range(3):
        with pytest.raises(LeaseLost):
            lease.extend(5)
        assert not lease.valid
        assert lease.remaining() == 0.0
        assert lease.lost.is_set()


def test_a_late_yes_does_not_bring_a_lease_back(world: Scene) -> None:
    """The store was more patient than the holder's clock: what the holder has been told stays true."""
    alice = world.party()
    ttl = world.ttl(0.4)
    lease = alice.lock("x", ttl=ttl).acquire()
    faults = Faults(alice)
    faults.delay("renew", ttl * 1.2, after=True)
    seen_false = False
    end = time.monotonic() + 2.5 * ttl
    while time.monotonic() < end:
        valid = lease.valid
        assert not (seen_false and valid)
        seen_false = seen_false or not valid
        time.sleep(0.002)
    assert seen_false


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
    ttl = world.kept_ttl()
    lease = alice.lock("x", ttl=ttl).acquire()
    for step in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda step=step: real() + step)
        # Longer than from one renewal to the next, and both together longer than a ttl.
        with pytest.raises(AcquireTimeout):
            bob.lock("x", ttl=ttl).acquire(timeout=ttl * 0.6)
        assert lease.valid
        assert lease.remaining() <= lease.ttl
    monkeypatch.undo()
    lease.release()


def test_extend_makes_a_lease_longer_and_never_shorter(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=5, renew=False).acquire()
    lease.extend(20)
    assert 18 < lease.remaining() < 20
    assert world.line("x").holders[0].remaining > 18
    lease.extend(1)
    assert 18 < lease.remaining() < 20
    assert world.line("x").holders[0].remaining > 18
    lease.release()


def test_a_lease_without_renewal_gets_its_whole_ttl_after_a_wait(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(1.0)
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x", ttl=ttl, renew=False).acquire.start())
    # Its place in the line was last renewed a while ago; the next renewal would be due soon.
    time.sleep(0.6 * ttl)
    began = time.monotonic()
    lease.release()
    granted = waits.result(2)
    remaining, since = granted.remaining(), time.monotonic() - began
    assert remaining > ttl * 0.95 - since
    granted.release()


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
    (waits,) = world.queue_up("x", lambda: bob.lock("x", ttl=30, renew=False).acquire.start(timeout=10))
    lease.release()
    granted = waits.result(5)
    assert first
    assert granted.id != first[0].id
    assert granted.valid
    granted.release()
