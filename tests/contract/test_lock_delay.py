"""lock_delay: after a holder was lost the next one waits that much longer; after a release or an eviction it does not."""

from __future__ import annotations

import time

import pytest

from lockline import ConfigError, LeaseLost
from lockline.core.backend import EndingWithClient, HandingOver

from ..calm import calm
from .scene import OUTLIVED, Scene


def delays(world: Scene) -> bool:
    return not isinstance(world.party().client.real._engine.backend, EndingWithClient)


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), True, "5"])
def test_a_delay_that_is_none_is_refused_before_any_request(world: Scene, wrong: object) -> None:
    with pytest.raises(ConfigError, match="lock_delay"):
        world.party().lock("x", lock_delay=wrong)


def test_a_store_that_ends_claims_with_their_client_refuses_a_delay(world: Scene) -> None:
    if not delays(world):
        with pytest.raises(ConfigError, match="lock_delay"):
            world.party().lock("x", lock_delay=5)
        world.party().lock("x", lock_delay=0).acquire().release()


def test_after_a_release_the_next_one_comes_at_once(world: Scene) -> None:
    if not delays(world):
        return
    alice, bob = world.party(), world.party()
    lease = alice.lock("x", lock_delay=60).acquire()
    waits = bob.lock("x").acquire.start()
    assert lease.remaining() <= 10
    lease.release()
    waits.result(5 * world.world.patience).release()


def test_after_a_holder_ran_out_the_next_one_waits_for_the_delay(world: Scene) -> None:
    """Also when the one who lost it says that it is done: what it has sent may still be on its way."""
    if not delays(world):
        return
    alice, bob = world.party(), world.party()
    ttl, delay = world.ttl(0.3), world.ttl(0.6)
    sent, calmly = time.monotonic(), calm()
    lease = alice.lock("x", ttl=ttl, renew=False, lock_delay=delay).acquire()
    waits = bob.lock("x").acquire.start()
    assert lease.lost.wait(5 * ttl)
    assert calm() - calmly < ttl + delay * 0.7
    with pytest.raises(LeaseLost):
        lease.release()
    assert not waits.done or time.monotonic() - sent >= (ttl + delay) * 0.98
    next_one = waits.result(20)
    assert time.monotonic() - sent >= (ttl + delay) * 0.98
    assert next_one.token > lease.token
    next_one.release()


def test_a_holder_that_is_renewed_holds_on_and_trusts_no_more_than_its_ttl(world: Scene) -> None:
    if not delays(world):
        return
    alice, bob = world.party(), world.party()
    ttl = world.kept_ttl()
    lease = alice.lock("x", ttl=ttl, lock_delay=2 * ttl).acquire()
    end = time.monotonic() + OUTLIVED * ttl
    while time.monotonic() < end:
        assert 0 < lease.remaining() <= ttl
        time.sleep(0.02)
    assert bob.lock("x").try_acquire() is None
    lease.extend(ttl * 3)
    assert lease.remaining() <= ttl * 3
    lease.release()
    bob.lock("x").acquire(timeout=5).release()


def test_an_operator_who_evicts_does_not_wait(world: Scene) -> None:
    if not delays(world):
        return
    alice, bob = world.party(), world.party()
    lease = alice.lock("x", ttl=60, lock_delay=60).acquire()
    waits = bob.lock("x").acquire.start()
    world.wait_for(lambda: world.evict("x") == 1)
    waits.result(10 * world.world.patience).release()
    with pytest.raises(LeaseLost):
        lease.release()


@pytest.mark.processes
def test_after_a_killed_holder_the_next_one_waits_for_the_delay(world: Scene) -> None:
    if not delays(world):
        return
    alice, other = world.party(), world.process()
    ttl, delay = world.ttl(0.4), world.ttl(0.6)
    sent = time.monotonic()
    token = other.ask("acquire", name="x", ttl=ttl, lock_delay=delay)["token"]
    other.kill()
    lease = alice.lock("x").acquire(timeout=20)
    assert time.monotonic() - sent >= (ttl + delay) * 0.98
    assert lease.token > token
    lease.release()


@pytest.mark.processes
def test_a_lease_that_was_attached_keeps_its_delay_when_its_holder_is_killed(world: Scene) -> None:
    if not isinstance(world.party().client.real._engine.backend, HandingOver):
        return
    alice, other = world.party(), world.process()
    ttl, delay = world.ttl(0.4), world.ttl(0.6)
    ticket = alice.lock("x", ttl=ttl, lock_delay=delay).acquire().detach(60)
    sent = time.monotonic()
    token = other.ask("attach", ticket=ticket)["token"]
    other.kill()
    lease = alice.lock("x").acquire(timeout=20)
    assert time.monotonic() - sent >= (ttl + delay) * 0.98
    assert lease.token > token
    lease.release()
