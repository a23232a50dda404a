"""Promise 1: no lock without expiry, and no expiry of a lock that is kept."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from lockline import AcquireTimeout, BackendUnavailable

from .parties import LONG
from .scene import A_MINUTE, KINDS, Passed, Scene


def test_a_lock_has_a_ttl_of_ten_seconds_unless_told_otherwise(world: Scene) -> None:
    alice = world.party()
    before = time.monotonic()
    lease = alice.do(lambda: alice.client.real.lock("x").acquire())
    remaining, passed = lease.remaining(), time.monotonic() - before
    assert lease.ttl == 10.0
    assert 9.8 - passed < remaining <= 10.0
    (held,) = world.line("x").holders
    assert 0 < held.remaining <= 10.1
    lease.release()


@pytest.mark.parametrize("kind", KINDS)
def test_every_claim_in_the_store_has_an_end(world: Scene, kind: str) -> None:
    alice, bob = world.party(), world.party()
    lease = getattr(alice, kind)("x", ttl=50).acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x", ttl=30).acquire.start())
    held, waiting = world.line("x").claims
    assert 0 < held.remaining <= 50.1
    assert 0 < waiting.remaining <= 30.1
    lease.release()
    waits.result().release()


def test_a_lease_that_nobody_renews_goes_to_the_next_within_its_ttl(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(0.3)
    passed = Passed()
    left = alice.lock("x", ttl=ttl, renew=False).acquire()
    # Never before the ttl is over; a minute is much less than a ttl whose seconds were taken for something larger.
    lease = bob.lock("x").acquire(timeout=A_MINUTE)
    assert not left.valid
    assert passed() >= ttl * 0.99
    lease.release()


def test_a_lease_that_is_kept_and_the_claim_that_waits_for_it_outlive_their_ttl(world: Scene) -> None:
    """Takes a whole ttl of real time, of the shortest that a busy machine can be trusted to renew: no other story shows that the store
    keeps what is renewed.
    """
    alice, bob, carol = world.party(), world.party(), world.party()
    ttl = world.kept
    lease = alice.lock("x", ttl=ttl).acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x", ttl=ttl).acquire.start())
    (waiting,) = world.line("x").waiters
    end = time.monotonic() + 1.15 * ttl
    while time.monotonic() < end:
        assert lease.valid
        assert carol.lock("x").try_acquire() is None
        time.sleep(0.25)
    line = world.line("x")
    assert [claim.id for claim in line.holders] == [lease.id]
    # Where the store has no order, a waiter is shown anew by each of its tries.
    assert [claim.id for claim in line.waiters] == [waiting.id] or not world.world.has_lines
    assert not waits.done
    lease.release()
    waits.result().release()


@pytest.mark.needs("read_write")
def test_fifty_readers_are_all_renewed(world: Scene) -> None:
    alice = world.party()
    readers = [world.sibling(alice) for _ in range(50)]
    leases = [reader.read("x").acquire() for reader in readers]
    world.wait_for_renewal(*leases)
    assert all(lease.valid for lease in leases)
    assert len(world.line("x").holders) == 50
    for lease in leases:
        lease.release()


def test_a_fraction_of_a_second_is_not_rounded_away(world: Scene) -> None:
    alice = world.party()
    for ttl in (61.25, 62.5, timedelta(milliseconds=60_750)):
        seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
        passed = Passed()
        lease = alice.lock("x", ttl=ttl, renew=False).acquire()
        assert lease.ttl == seconds
        remaining, since = lease.remaining(), passed()
        assert seconds * 0.99 - since <= remaining <= seconds * 0.99
        (held,) = world.line("x").holders
        assert seconds - 1 - passed() < held.remaining <= seconds + 0.1
        lease.release()


def test_a_ttl_far_too_short_ends_in_an_answer_and_not_in_a_loop(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    try:
        lease = alice.lock("x", ttl=0.0004, renew=False).acquire.start(timeout=0.5).result()
    except (AcquireTimeout, BackendUnavailable):
        pass
    else:
        time.sleep(0.001)
        assert not lease.valid
    bob.lock("x").acquire(timeout=A_MINUTE).release()


def test_a_long_ttl_is_kept_to_the_second(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=timedelta(days=30)).acquire()
    assert lease.remaining() > 29 * 86400
    assert world.line("x").holders[0].remaining > 29 * 86400
    lease.release()


@pytest.mark.core
def test_max_hold_ends_a_lease_however_well_it_is_kept(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    began = time.monotonic()
    lease = alice.lock("x", max_hold=1.0).acquire()
    waits = bob.lock("x").acquire.start()
    lease.extend(LONG)
    assert lease.remaining() <= 1.0
    assert lease.lost.wait(A_MINUTE)
    assert time.monotonic() - began >= 0.98
    waits.result().release()
    with pytest.raises(Exception, match="expired"):
        lease.release()
