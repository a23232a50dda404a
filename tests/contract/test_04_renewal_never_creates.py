"""Promise 4: renewal never creates; "not yours" is loss at once, an error is not loss until the deadline."""

from __future__ import annotations

import time
from functools import partial

import pytest

from lockline import LeaseLost
from lockline.runtime.clock import now

from ..calm import calm
from .faults import Faults
from .scene import Scene


def remove(world: Scene, party: object, lease: object) -> None:
    """Delete the record under its holder, as an operator with the store's own tools would."""
    backend = party.client.real._engine.backend  # type: ignore[attr-defined]
    claim = lease.real._live.claim  # type: ignore[attr-defined]
    assert party.do(lambda: _run(world, backend.leave(claim, time.clock_gettime(time.CLOCK_BOOTTIME) + 5)))  # type: ignore[attr-defined]


def _run(world: Scene, coroutine: object) -> object:
    if world.flavour == "asyncio":
        return coroutine
    from lockline.runtime.blocking import run

    return run(coroutine)  # type: ignore[arg-type]


def test_a_record_deleted_under_its_holder_is_loss_and_is_not_made_again(world: Scene) -> None:
    alice = world.party()
    ttl = world.ttl(0.6)
    lease = alice.lock("x", ttl=ttl).acquire()
    remove(world, alice, lease)
    assert lease.lost.wait(ttl)
    assert not world.line("x").claims
    time.sleep(ttl / 2)
    assert not world.line("x").claims
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_holder_that_was_cut_off_does_not_take_the_lock_back(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(0.4)
    lease = alice.lock("x", ttl=ttl).acquire()
    faults = Faults(alice)
    faults.fail("renew", times=None)
    taken = bob.lock("x", ttl=30, renew=False).acquire(timeout=ttl + 20)
    left = world.line("x").holders[0].remaining
    faults.heal()
    with pytest.raises(LeaseLost):
        lease.extend(60)
    assert not lease.valid
    (held,) = world.line("x").claims
    assert held.id == taken.id
    assert held.remaining <= left
    taken.release()


def test_two_renewals_of_three_may_fail(world: Scene) -> None:
    alice = world.party()
    ttl = world.ttl(0.9)
    lease = alice.lock("x", ttl=ttl).acquire()
    faults = Faults(alice)
    for _ in range(2):
        faults.fail("renew", times=2)
        seen = faults.count("renew")
        world.wait_for(partial(lambda seen: faults.count("renew") >= seen + 3, seen), 2 * ttl)
        assert lease.valid
    faults.heal()
    lease.release()


def test_errors_until_the_deadline_are_loss_and_the_holder_hears_of_it_before_the_ttl_ends(world: Scene) -> None:
    alice = world.party()
    ttl = world.ttl(0.6)
    told: list[LeaseLost] = []
    when: list[float] = []
    lease = alice.lock("x", ttl=ttl).acquire()

    def hear(lost: LeaseLost) -> None:
        told.append(lost)
        when.append(calm())

    lease.on_lost(hear)
    Faults(alice).fail("renew", times=None)
    began, calmly = now(), calm()
    world.wait_for(lambda: when, 2 * ttl)
    # Nothing was answered after that moment, so nothing may have moved the deadline past it by more than the ttl.
    assert lease.real._live.deadline <= began + ttl
    assert when[0] - calmly <= lease.real._live.deadline - began + 0.1
    assert told[0].reason == "expired"
    assert told[0].token == lease.token


def test_an_error_that_is_no_connection_error_does_not_end_the_keeper(world: Scene) -> None:
    alice = world.party()
    ttl = world.kept_ttl()
    lease = alice.lock("x", ttl=ttl).acquire()
    faults = Faults(alice)
    faults.fail("renew", error=RuntimeError("a bug in a backend"), times=2)
    world.outlive(ttl)
    assert faults.count("renew") > 2
    assert lease.valid
    lease.release()


def test_an_eviction_is_noticed_long_before_the_ttl(world: Scene) -> None:
    alice = world.party()
    told: list[LeaseLost] = []
    lease = alice.lock("x", ttl=30).acquire()
    lease.on_lost(told.append)
    assert world.evict("x") == 1
    if alice.client.guarantees.push:
        assert lease.lost.wait(3 * world.world.patience)
        assert not lease.valid
        world.wait_for(lambda: told)
        assert told[0].reason == "evicted"
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_lease_that_nobody_renews_hears_of_its_eviction_too(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=30, renew=False).acquire()
    # A store may need a while before it can reach a holder that never waited.
    time.sleep(world.world.patience)
    before = lease.remaining()
    assert world.evict("x") == 1
    if alice.client.guarantees.push:
        assert lease.lost.wait(3 * world.world.patience)
        with pytest.raises(LeaseLost, match="evicted"):
            lease.check()
    else:
        assert 0 < lease.remaining() <= before
    with pytest.raises(LeaseLost):
        lease.release()


def test_an_evicted_holder_does_not_silently_resume(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(0.6)
    lease = alice.lock("x", ttl=ttl).acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x").acquire.start())
    world.evict("x")
    taken = waits.result(2)
    assert taken.token > lease.token
    assert lease.lost.wait(2 * ttl)
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()
    assert taken.valid
    taken.release()
