"""Promise 4: renewal never creates; "not yours" is loss at once, an error is not loss until the deadline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lockline import LeaseLost
from lockline.runtime.blocking import run
from lockline.runtime.clock import now, validity

from ..renewed import hasten, renewal_of
from .faults import Faults
from .scene import A_MINUTE, Scene

ATTENDED = 4


def remove(world: Scene, party: Any, lease: Any) -> None:
    """Delete the record under its holder, as an operator with the store's own tools would."""
    backend = party.client.real._engine.backend
    claim = lease.real._live.claim
    assert ask(world, party, lambda: backend.leave(claim, now() + A_MINUTE))


def ask(world: Scene, party: Any, question: Callable[[], Any]) -> Any:
    """What the backend answers, below the client."""
    return party.do(question if world.flavour == "asyncio" else lambda: run(question()))


def loss_of(lease: Any) -> LeaseLost:
    with pytest.raises(LeaseLost) as caught:
        lease.check()
    return caught.value


def test_a_record_deleted_under_its_holder_is_loss_and_is_not_made_again(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(alice)
    remove(world, alice, lease)
    hasten(lease)
    # Not before a renewal was answered: nothing else tells it.
    assert lease.lost.wait(A_MINUTE)
    assert faults.count("renew")
    assert loss_of(lease).reason != "expired"
    assert not world.line("x").claims
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_holder_that_was_cut_off_does_not_take_the_lock_back(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(0.4)
    lease = alice.lock("x", ttl=ttl).acquire()
    faults = Faults(alice)
    faults.fail("renew", times=None)
    taken = bob.lock("x", renew=False).acquire(timeout=A_MINUTE)
    left = world.line("x").holders[0].remaining
    faults.heal()
    with pytest.raises(LeaseLost):
        lease.extend(60)
    assert not lease.valid
    (held,) = world.line("x").claims
    assert held.id == taken.id
    assert held.remaining <= left
    taken.release()


@pytest.mark.core
def test_two_renewals_of_three_may_fail(world: Scene) -> None:
    """They are repeated after a second, which is long before the next one would be due."""
    alice = world.party()
    lease = alice.lock("x").acquire()
    faults, renewed = Faults(alice), renewal_of(lease)
    faults.fail("renew", times=2)
    hasten(lease)
    world.wait_for(renewed, what="a renewal")
    assert faults.count("renew") >= 3
    assert lease.valid
    lease.release()


@pytest.mark.core
def test_errors_until_the_deadline_are_loss_and_the_holder_hears_of_it(world: Scene) -> None:
    alice = world.party()
    ttl = world.ttl(0.6)
    told: list[LeaseLost] = []
    lease = alice.lock("x", ttl=ttl).acquire()
    lease.on_lost(told.append)
    Faults(alice).fail("renew", times=None)
    began = now()
    world.wait_for(lambda: told)
    # Nothing was answered after that moment, so nothing may have moved the deadline past it by more than the ttl.
    assert lease.real._live.deadline <= began + validity(ttl)
    assert told[0].reason == "expired"
    assert told[0].token == lease.token


@pytest.mark.core
def test_an_error_that_is_no_connection_error_does_not_end_the_keeper(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    faults, renewed = Faults(alice), renewal_of(lease)
    faults.fail("renew", error=RuntimeError("a bug in a backend"), times=2)
    hasten(lease)
    world.wait_for(renewed, what="a renewal")
    assert faults.count("renew") > 2
    assert lease.valid
    lease.release()


@pytest.mark.needs("pushes")
def test_an_eviction_is_noticed_long_before_the_ttl(world: Scene) -> None:
    alice = world.party()
    told: list[LeaseLost] = []
    lease = alice.lock("x").acquire()
    lease.on_lost(told.append)
    assert world.evict("x") == 1
    assert lease.lost.wait(A_MINUTE)
    assert not lease.valid
    world.wait_for(lambda: told)
    assert told[0].reason == "evicted"
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_lease_that_nobody_renews_hears_of_its_eviction_too(world: Scene) -> None:
    alice = world.party()
    faults = Faults(alice)
    lease = alice.lock("x", renew=False).acquire()
    # A store can reach a holder that never waited once its renewer has come by for the second time.
    world.wait_for(lambda: faults.count("attend") >= ATTENDED, what="some rounds of the renewer")
    before = lease.remaining()
    assert world.evict("x") == 1
    if world.world.pushes:
        assert lease.lost.wait(A_MINUTE)
        with pytest.raises(LeaseLost, match="evicted"):
            lease.check()
    else:
        assert 0 < lease.remaining() <= before
    with pytest.raises(LeaseLost):
        lease.release()


def test_an_evicted_holder_does_not_silently_resume(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x").acquire.start())
    world.evict("x")
    taken = waits.result()
    assert taken.token > lease.token
    hasten(lease)
    assert lease.lost.wait(A_MINUTE)
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()
    assert taken.valid
    taken.release()
