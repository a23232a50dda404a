"""Promise 11: renewal is bound to the lease: it stops on release, with the garbage, at max_hold, and with its thread or task."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from lockline import LeaseDropped, LeaseLost
from lockline.core import keeper

from ..renewed import hasten
from .faults import Faults
from .parties import LONG
from .scene import A_MINUTE, Scene


def kept(party: object) -> list[object]:
    return party.client.real._engine._keeper.kept()  # type: ignore[attr-defined, no-any-return]


def renewals_under_way(party: object) -> bool:
    return any(renewal.worker.alive() for renewal in party.client.real._engine._keeper._renewals)  # type: ignore[attr-defined]


def test_a_released_lease_is_renewed_no_more(world: Scene) -> None:
    alice = world.party()
    faults = Faults(alice)
    lease = alice.lock("x").acquire()
    world.wait_for_renewal(lease)
    lease.release()
    assert not kept(alice)
    # One may have been chosen already: whoever begins to listen after its first renewal asks once more at once.
    world.wait_for(lambda: not renewals_under_way(alice), what="the end of what the keeper had begun")
    seen = faults.count("renew")
    hasten(lease)
    time.sleep(1.5 * keeper.TICK)  # it has looked round meanwhile
    assert faults.count("renew") == seen


def test_a_lease_that_nobody_can_reach_is_free_within_its_ttl(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(1.0)
    lease = alice.lock("x", ttl=ttl).acquire()
    with pytest.warns(LeaseDropped, match="dropped without release"):  # noqa: PT031 - the garbage may take a moment
        del lease
        gc.collect()
    bob.lock("x").acquire(timeout=A_MINUTE).release()
    world.wait_for(lambda: not kept(alice))


def test_a_nested_lease_that_nobody_can_reach_does_not_free_the_outer_one(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    outer = alice.rlock("x").acquire()
    inner = alice.rlock("x").acquire()
    del inner
    world.wait_for_renewal(outer)
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
    bob.lock("x").acquire(timeout=A_MINUTE).release()
    assert not lease.valid


def test_a_lease_that_was_adopted_outlives_the_one_who_took_it(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    worker = world.sibling(alice)
    lease = worker.lock("x").acquire().given_to(alice)
    lease.adopt()
    worker.end()
    world.wait_for_renewal(lease)
    assert lease.valid
    assert bob.lock("x").try_acquire() is None
    lease.release()


@pytest.mark.flavour("asyncio")
@pytest.mark.parametrize("how", ["wait_for", "gather"])
def test_a_lease_that_a_task_returned_goes_on_being_renewed(world: Scene, how: str) -> None:
    """`wait_for(lock.acquire(), 5)` runs the acquire in a task of its own on some versions; its end is no end."""
    alice, bob = world.party(), world.party()
    lock = alice.client.real.lock("x", ttl=LONG)

    async def take() -> object:
        if how == "wait_for":
            return await asyncio.wait_for(lock.acquire(), A_MINUTE)
        (lease,) = await asyncio.gather(lock.acquire())
        return lease

    lease = alice.do(take)
    world.wait_for_renewal(lease)
    assert lease.valid
    assert bob.lock("x").try_acquire() is None
    lease.release()


def test_a_lease_without_renewal_is_left_alone(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=world.ttl(0.2), renew=False).acquire()
    ends = lease.real._live.ends
    assert lease.lost.wait(A_MINUTE)
    # The renewer may ask once whether it is still there, to find an eviction. That lengthens nothing.
    assert lease.real._live.ends == ends
    with pytest.raises(LeaseLost):
        lease.release()


def test_a_name_that_was_lost_is_renewed_again_after_the_next_acquire(world: Scene) -> None:
    alice = world.party()
    late = alice.lock("x").acquire()
    world.evict("x")
    hasten(late)
    assert late.lost.wait(A_MINUTE)
    lease = alice.lock("x").acquire(timeout=A_MINUTE)
    world.wait_for_renewal(lease)
    assert lease.valid
    lease.release()
    with pytest.raises(LeaseLost):
        late.release()


@pytest.mark.needs("read_write")
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


@pytest.mark.needs("read_write")
def test_one_clients_keeper_does_not_keep_anothers_reader_alive(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    dead = alice.read("x", ttl=world.ttl(0.4)).acquire()
    Faults(alice).fail("renew", times=None)
    alive = bob.read("x").acquire()
    world.wait_for(lambda: not dead.valid)
    world.wait_for_line("x", holders=1)
    assert alive.valid
    alive.release()
    carol.write("x").acquire(timeout=A_MINUTE).release()


def test_many_leases_are_renewed_in_few_requests(world: Scene) -> None:
    alice = world.party()
    leases = [alice.lock(f"x{number}").acquire() for number in range(60)]
    faults = Faults(alice)
    world.wait_for_renewal(*leases)
    assert all(lease.valid for lease in leases)
    # One by one that would be 60.
    assert faults.count("renew") < 30
    for lease in leases:
        lease.release()
