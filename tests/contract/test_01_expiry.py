"""Promise 1: no lock without expiry, and no expiry of a lock that is kept."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from lockline import AcquireTimeout, BackendUnavailable

from ..calm import calm
from .scene import Scene


def test_a_lock_has_a_ttl_of_ten_seconds_unless_told_otherwise(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    assert lease.ttl == 10.0
    assert 8.0 < lease.remaining() <= 10.0
    (held,) = world.line("x").holders
    assert 0 < held.remaining <= 10.1
    lease.release()


@pytest.mark.parametrize("kind", ["lock", "rlock", "read", "write"])
def test_every_claim_in_the_store_has_an_end(world: Scene, kind: str) -> None:
    alice, bob = world.party(), world.party()
    lease = getattr(alice, kind)("x", ttl=5).acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x", ttl=3).acquire.start())
    held, waiting = world.line("x").claims
    assert 0 < held.remaining <= 5.1
    assert 0 < waiting.remaining <= 3.1
    lease.release()
    waits.result(2).release()


def test_a_lease_that_nobody_renews_goes_to_the_next_within_its_ttl(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(0.3)
    began, calmly = time.monotonic(), calm()
    left = alice.lock("x", ttl=ttl, renew=False).acquire()
    lease = bob.lock("x").acquire(timeout=ttl + 20)
    # Never before the ttl is over, and not a thousand times later because somebody mixed up seconds and milliseconds.
    assert not left.valid
    assert time.monotonic() - began >= ttl * 0.99
    assert calm() - calmly <= ttl * 1.1 + 0.4 * world.world.patience
    lease.release()


def test_a_lease_that_is_kept_outlives_its_ttl_many_times(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.kept_ttl()
    lease = alice.lock("x", ttl=ttl).acquire()
    end = time.monotonic() + 2 * ttl
    while time.monotonic() < end:
        assert lease.valid
        assert bob.lock("x").try_acquire() is None
        time.sleep(0.02)
    lease.release()


def test_a_waiter_without_a_timeout_outwaits_a_holder_that_renews(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.kept_ttl()
    lease = alice.lock("x", ttl=ttl).acquire()
    waits = bob.lock("x", ttl=ttl).acquire.start()
    world.outlive(ttl)
    assert not waits.done
    lease.release()
    waits.result(2).release()


def test_fifty_readers_hold_for_two_ttls_and_all_stay_valid(world: Scene) -> None:
    alice = world.party()
    ttl = world.kept_ttl()
    readers = [world.sibling(alice) for _ in range(50)]
    leases = [reader.read("x", ttl=ttl).acquire() for reader in readers]
    end = time.monotonic() + 2 * ttl
    while time.monotonic() < end:
        assert all(lease.valid for lease in leases)
        time.sleep(0.05)
    assert len(world.line("x").holders) == 50
    for lease in leases:
        lease.release()


@pytest.mark.parametrize("ttl", [1.25, 2.5, timedelta(milliseconds=1750)])
def test_a_fraction_of_a_second_is_not_rounded_away(world: Scene, ttl: float | timedelta) -> None:
    alice = world.party()
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    began = time.monotonic()
    lease = alice.lock("x", ttl=ttl, renew=False).acquire()
    assert lease.ttl == seconds
    remaining, passed = lease.remaining(), time.monotonic() - began
    assert seconds * 0.98 - passed < remaining <= seconds
    (held,) = world.line("x").holders
    assert held.remaining > 0
    lease.release()


def test_a_ttl_far_too_short_ends_in_an_answer_and_not_in_a_loop(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    try:
        lease = alice.lock("x", ttl=0.0004, renew=False).acquire.start(timeout=0.5).result(5)
    except (AcquireTimeout, BackendUnavailable):
        pass
    else:
        time.sleep(0.001)
        assert not lease.valid
    bob.lock("x").acquire(timeout=20).release()


def test_a_long_ttl_is_kept_to_the_second(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=timedelta(days=30)).acquire()
    assert lease.remaining() > 29 * 86400
    assert world.line("x").holders[0].remaining > 29 * 86400
    lease.release()


def test_max_hold_ends_a_lease_however_well_it_is_kept(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(0.5)
    began, calmly = time.monotonic(), calm()
    lease = alice.lock("x", ttl=ttl, max_hold=2 * ttl).acquire()
    waits = bob.lock("x").acquire.start()
    assert lease.lost.wait(4 * ttl)
    assert time.monotonic() - began >= 1.9 * ttl
    assert calm() - calmly <= 2 * ttl + 0.4
    waits.result(2 * ttl + 1).release()
    with pytest.raises(Exception, match="expired"):
        lease.release()
