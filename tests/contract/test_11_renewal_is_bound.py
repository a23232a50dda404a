"""Promise 11: renewal is bound to the lease: it stops on release, with the garbage, at max_hold, and with its thread or task."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from lockline import LeaseDropped, LeaseLost

from ..calm import calm
from .faults import Faults
from .scene import Scene


def kept(party: object) -> list[object]:
    return party.client.real._engine._keeper.kept()  # type: ignore[attr-defined, no-any-return]


def test_a_released_lease_is_renewed_no_more(world: Scene) -> None:
    alice = world.party()
    ttl = world.ttl(0.4)
    faults = Faults(alice)
    lease = alice.lock("x", ttl=ttl).acquire()
    world.wait_for(lambda: faults.count("renew") >= 1)
    lease.release()
    seen = faults.count("renew")
    time.sleep(ttl)
    assert faults.count("renew") == seen
    assert not kept(alice)


def test_a_lease_that_nobody_can_reach_is_free_within_its_ttl(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(0.4)
    lease = alice.lock("x", ttl=ttl).acquire()
    time.sleep(ttl / 2)
    with pytest.warns(LeaseDropped, match="dropped without release"):  # noqa: PT031 - the garbage may take a moment
        del lease
        gc.collect()
    began = calm()
    bob.lock("x").acquire(timeout=5).release()
    assert calm() - began < 2 * ttl + 0.3
    world.wait_for(lambda: not kept(alice))


def test_a_nested_lease_that_nobody_can_reach_does_not_free_the_outer_one(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.kept_ttl()
    outer = alice.rlock("x", ttl=ttl).acquire()
    inner = alice.rlock("x", ttl=ttl).acquire()
    del inner
    world.outlive(ttl)
    assert outer.valid
    assert bob.rlock("x").try_acquire() is None
    outer.release()
    assert not world.line("x").claims


def test_the_end_of_the_thread_or_task_that_took_it_ends_renewal(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    worker = world.sibling(alice)
    ttl = world.ttl(0.4)
    lease = worker.lock("x", ttl=ttl).acquire()
    worker.end()
    began = calm()
    bob.lock("x").acquire(timeout=5).release()
    assert calm() - began < 2 * ttl + 0.3
    assert not lease.valid


def test_a_lease_that_was_adopted_outlives_the_one_who_took_it(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    worker = world.sibling(alice)
    ttl = world.kept_ttl()
    lease = worker.lock("x", ttl=ttl).acquire().given_to(alice)
    lease.adopt()
    worker.end()
    world.outlive(ttl)
    assert lease.valid
    assert bob.lock("x").try_acquire() is None
    lease.release()


@pytest.mark.flavour("asyncio")
@pytest.mark.parametrize("how", ["wait_for", "gather"])
def test_a_lease_that_a_task_returned_goes_on_being_renewed(world: Scene, how: str) -> None:
    """`wait_for(lock.acquire(), 5)` runs the acquire in a task of its own on some versions; its end is no end."""
    alice, bob = world.party(), world.party()
    ttl = world.kept_ttl()
    lock = alice.client.real.lock("x", ttl=ttl)

    async def take() -> object:
        if how == "wait_for":
            return await asyncio.wait_for(lock.acquire(), 5)
        (lease,) = await asyncio.gather(lock.acquire())
        return lease

    lease = alice.do(take)
    world.outlive(ttl)
    assert lease.valid
    assert bob.lock("x").try_acquire() is None
    lease.release()


def test_a_lease_without_renewal_is_left_alone(world: Scene) -> None:
    alice = world.party()
    # Less than the keeper's tick, where the store allows it: one that holds for longer is asked for once, to hear of an eviction.
    ttl = world.ttl(0.2)
    faults = Faults(alice)
    lease = alice.lock("x", ttl=ttl, renew=False).acquire()
    assert lease.lost.wait(2 * ttl)
    assert faults.count("renew") == 0
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_name_that_was_lost_is_renewed_again_after_the_next_acquire(world: Scene) -> None:
    alice = world.party()
    ttl = world.kept_ttl()
    late = alice.lock("x", ttl=ttl).acquire()
    world.evict("x")
    assert late.lost.wait(2 * ttl + 1)
    lease = alice.lock("x", ttl=ttl).acquire(timeout=5)
    faults = Faults(alice)
    # The third is due when the ttl is over.
    world.wait_for(lambda: faults.count("renew") >= 3)
    assert lease.valid
    lease.release()
    with pytest.raises(LeaseLost):
        late.release()


def test_nothing_is_kept_after_many_readers_have_come_and_gone(world: Scene) -> None:
    alice = world.party()
    others = [alice, *(world.sibling(alice) for _ in range(4))]
    for _ in range(3):
        leases = [other.read("x").acquire() for other in others for _ in range(3)]
        assert len(kept(alice)) == len(others)
        for lease in leases:
            lease.release()
    assert not kept(alice)
    assert not alice.client.real._engine._mine


def test_one_clients_keeper_does_not_keep_anothers_reader_alive(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    ttl = world.ttl(0.4)
    dead = alice.read("x", ttl=ttl).acquire()
    Faults(alice).fail("renew", times=None)
    alive = bob.read("x", ttl=world.kept_ttl()).acquire()
    world.wait_for(lambda: not dead.valid, 2 * ttl)
    world.wait_for_line("x", holders=1)
    assert alive.valid
    alive.release()
    carol.write("x").acquire(timeout=5).release()


def test_many_leases_are_renewed_in_few_requests(world: Scene) -> None:
    alice = world.party()
    ttl = world.kept_ttl()
    leases = [alice.lock(f"x{number}", ttl=ttl).acquire() for number in range(60)]
    faults = Faults(alice)
    world.outlive(ttl)
    assert all(lease.valid for lease in leases)
    # Three times each in a ttl; one by one that would be 180.
    assert faults.count("renew") < 60
    for lease in leases:
        lease.release()
