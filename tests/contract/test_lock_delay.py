"""lock_delay: after a holder was lost the next one waits that much longer; after a release or an eviction it does not."""

from __future__ import annotations

import pytest

from lockline import ConfigError, LeaseLost

from .parties import LONG
from .scene import A_MINUTE, Passed, Scene


@pytest.mark.core
def test_a_delay_that_is_none_is_refused_before_any_request(world: Scene) -> None:
    alice = world.party()
    for wrong in (-1, float("nan"), float("inf"), True, "5"):
        with pytest.raises(ConfigError, match="lock_delay"):
            alice.lock("x", lock_delay=wrong)


@pytest.mark.lacks("delays_locks")
def test_a_store_that_ends_claims_with_their_client_refuses_a_delay(world: Scene) -> None:
    with pytest.raises(ConfigError, match="lock_delay"):
        world.party().lock("x", lock_delay=5)
    world.party().lock("x", lock_delay=0).acquire().release()


@pytest.mark.needs("delays_locks")
def test_after_a_release_the_next_one_comes_at_once(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x", lock_delay=LONG).acquire()
    waits = bob.lock("x").acquire.start()
    assert lease.remaining() <= LONG
    lease.release()
    waits.result().release()


@pytest.mark.needs("delays_locks")
def test_after_a_holder_ran_out_the_next_one_waits_for_the_delay(world: Scene) -> None:
    """Also when the one who lost it says that it is done: what it has sent may still be on its way."""
    alice, bob = world.party(), world.party()
    ttl, delay = world.ttl(0.3), world.ttl(0.6)
    passed = Passed()
    lease = alice.lock("x", ttl=ttl, renew=False, lock_delay=delay).acquire()
    assert lease.remaining() <= ttl, "the delay is nothing that its holder could trust"
    waits = bob.lock("x").acquire.start()
    assert lease.lost.wait(A_MINUTE)
    with pytest.raises(LeaseLost):
        lease.release()
    assert not waits.done or passed() >= (ttl + delay) * 0.98
    next_one = waits.result()
    assert passed() >= (ttl + delay) * 0.98
    assert next_one.token > lease.token
    next_one.release()


@pytest.mark.needs("delays_locks")
def test_a_holder_that_is_renewed_holds_on_and_trusts_no_more_than_its_ttl(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x", ttl=A_MINUTE, lock_delay=2 * A_MINUTE).acquire()
    assert 0 < lease.remaining() <= A_MINUTE
    world.wait_for_renewal(lease)
    assert 0 < lease.remaining() <= A_MINUTE
    assert bob.lock("x").try_acquire() is None
    lease.extend(LONG)
    assert lease.remaining() <= LONG
    lease.release()
    bob.lock("x").acquire(timeout=A_MINUTE).release()


@pytest.mark.needs("delays_locks")
def test_an_operator_who_evicts_does_not_wait(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x", lock_delay=LONG).acquire()
    waits = bob.lock("x").acquire.start()
    world.wait_for(lambda: world.evict("x") == 1)
    waits.result().release()
    with pytest.raises(LeaseLost):
        lease.release()


@pytest.mark.needs("delays_locks")
@pytest.mark.processes
def test_after_a_killed_holder_the_next_one_waits_for_the_delay(world: Scene) -> None:
    alice, other = world.party(), world.process()
    ttl, delay = world.ttl(0.4), world.ttl(0.6)
    passed = Passed()
    token = other.ask("acquire", name="x", ttl=ttl, lock_delay=delay)["token"]
    other.kill()
    lease = alice.lock("x").acquire(timeout=A_MINUTE)
    assert passed() >= (ttl + delay) * 0.98
    assert lease.token > token
    lease.release()


@pytest.mark.needs("delays_locks", "hands_over")
@pytest.mark.processes
def test_a_lease_that_was_attached_keeps_its_delay_when_its_holder_is_killed(world: Scene) -> None:
    alice, other = world.party(), world.process()
    ttl, delay = world.ttl(0.4), world.ttl(0.6)
    ticket = alice.lock("x", ttl=ttl, lock_delay=delay).acquire().detach(60)
    passed = Passed()
    token = other.ask("attach", ticket=ticket)["token"]
    other.kill()
    lease = alice.lock("x").acquire(timeout=A_MINUTE)
    assert passed() >= (ttl + delay) * 0.98
    assert lease.token > token
    lease.release()
