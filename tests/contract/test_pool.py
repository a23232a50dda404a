# ruff: noqa: PT012 - the blocks are the story here
"""Capacity: weights, limits that change while in use, and a pool that says which one, never twice."""

from __future__ import annotations

from typing import Any

import pytest

import lockline
from lockline import AcquireTimeout, ConfigError, LeaseLost, LineFull, aio
from lockline.core.shells import engine_of

from .faults import Faults
from .parties import LONG
from .scene import A_MINUTE, Scene

GPUS = [0, 1, 2]


@pytest.mark.needs("semaphores")
def test_each_gets_another_one_and_the_next_waits_for_the_first_that_is_free(world: Scene) -> None:
    parties = [world.party() for _ in range(4)]
    slots = [party.pool("gpu", GPUS).acquire() for party in parties[:3]]
    assert sorted(slot.item for slot in slots) == GPUS
    waiting = parties[3].pool("gpu", GPUS).acquire.start()
    world.wait_for_line("gpu", holders=3, waiters=1)
    freed = slots[1].item
    slots[1].release()
    last = waiting.result()
    assert last.item == freed
    assert last.token > slots[1].token
    assert (last.name, last.ttl) == (f"gpu/{freed}", LONG)
    for slot in (slots[0], slots[2], last):
        slot.release()
    assert world.names() == []


@pytest.mark.needs("semaphores")
@pytest.mark.needs("has_lines")
def test_they_are_given_in_order_of_arrival(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    slot = alice.pool("gpu", ["only"]).acquire()
    waiting = world.queue_up(
        "gpu",
        lambda: bob.pool("gpu", ["only"]).acquire.start(),
        lambda: carol.pool("gpu", ["only"]).acquire.start(),
    )
    slot.release()
    for number, one in enumerate(world.in_turn(waiting)):
        assert one.party is (bob, carol)[number]
        one.release()


@pytest.mark.needs("semaphores")
def test_a_with_block_gives_it_back(world: Scene) -> None:
    alice = world.party()
    with alice.pool("gpu", ["a", "b"]) as slot:
        assert slot.item in ("a", "b")
        assert slot.valid
        assert {"gpu", slot.name} == set(world.names())
    assert world.names() == []


@pytest.mark.needs("semaphores")
def test_nothing_is_held_when_none_came_in_time(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    slot = alice.pool("gpu", [7]).acquire()
    with pytest.raises(AcquireTimeout), bob.pool("gpu", [7], timeout=0.3):
        raise AssertionError("the body ran without an item")
    with pytest.raises(LineFull):
        bob.pool("gpu", [7], max_waiting=0).acquire()
    world.wait_for(lambda: len(world.line("gpu").claims) == 1)
    slot.release()


@pytest.mark.needs("semaphores")
def test_an_item_that_somebody_still_seems_to_have_is_never_given_twice(world: Scene) -> None:
    """Its holder's permit is gone, and its lock on the item is not: whoever is let in waits for that, or for its timeout."""
    alice, bob = world.party(), world.party()
    slot = alice.pool("gpu", [7]).acquire()
    world.evict("gpu")
    with pytest.raises(AcquireTimeout):
        bob.pool("gpu", [7]).acquire(timeout=0.3)
    world.wait_for(lambda: not world.line("gpu").claims)
    waiting = bob.pool("gpu", [7]).acquire.start()
    with pytest.raises(LeaseLost):
        slot.release()
    waiting.result().release()


@pytest.mark.needs("semaphores")
def test_the_loss_of_the_item_is_the_loss_of_the_slot(world: Scene) -> None:
    alice = world.party()
    with pytest.raises(LeaseLost, match="gpu/7"), alice.pool("gpu", [7]) as slot:
        world.evict("gpu/7")
        world.wait_for(lambda: slot.lost.is_set())
    assert world.names() == []


@pytest.mark.needs("semaphores")
def test_a_permit_that_was_lost_on_the_way_to_an_item_is_asked_for_again(world: Scene) -> None:
    alice = world.party()
    faults, engine = Faults(alice), engine_of(alice.client.real)
    faults.delay("enter", 0)
    to_the_item = faults.hold("enter", times=1)
    taking = alice.pool("gpu", [7]).acquire.start()
    world.wait_for(lambda: faults.count("enter") == 2)
    world.evict("gpu")
    for live in engine._keeper.kept():
        live.due = 0.0
    engine._keeper.ring()
    world.wait_for(lambda: not engine._keeper._kept, what="the loss of the permit")
    to_the_item.set()
    slot = taking.result()
    assert slot.valid
    slot.release()


@pytest.mark.needs("semaphores")
@pytest.mark.processes
def test_a_killed_process_gives_its_item_to_the_next(world: Scene) -> None:
    alice = world.party()
    process = world.process()
    item = process.ask("take_from_pool", name="gpu", items=[7], ttl=world.ttl(0.5))["item"]
    process.kill()
    slot = alice.pool("gpu", [7]).acquire(timeout=A_MINUTE)
    assert slot.item == item == 7
    slot.release()


@pytest.mark.needs("semaphores")
def test_heavy_ones_count_for_as_many(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    heavy = alice.semaphore("memory", 80, weight=60).acquire()
    light = bob.semaphore("memory", 80, weight=20).acquire()
    assert carol.semaphore("memory", 80).try_acquire() is None
    light.release()
    (waiting,) = world.queue_up("memory", lambda: carol.semaphore("memory", 80, weight=40).acquire.start())
    assert bob.semaphore("memory", 80, weight=10).try_acquire() is None, "nobody overtakes the one who waits"
    heavy.release()
    waiting.result().release()


@pytest.mark.needs("semaphores")
def test_a_lower_limit_is_kept_by_whoever_comes_from_then_on(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    first, second = alice.semaphore("x", 3).acquire(), bob.semaphore("x", 3).acquire()
    (waiting,) = world.queue_up("x", lambda: carol.semaphore("x", 1).acquire.start())
    first.release()
    assert not waiting.done
    second.release()
    permit = waiting.result()
    assert alice.semaphore("x", 1).try_acquire() is None
    permit.release()


@pytest.mark.needs("semaphores")
def test_a_higher_limit_counts_when_the_last_who_said_the_lower_has_left(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    old = alice.semaphore("x", 1).acquire()
    waiting = world.queue_up(
        "x", lambda: bob.semaphore("x", 2).acquire.start(), lambda: carol.semaphore("x", 2).acquire.start()
    )
    old.release()
    for permit in [one.result() for one in waiting]:
        permit.release()


@pytest.mark.parametrize("connect", [lockline.connect, aio.connect], ids=["sync", "asyncio"])
def test_what_is_wrong_is_said_before_any_request(connect: type) -> None:
    client = connect("memory:pool")
    wrong: Any
    for wrong in ([], "abc", b"abc", 5, None, {1, 2}, [1, 1], [1, "1"], ["x" * 512], range(1001)):
        with pytest.raises(ConfigError):
            client.pool("gpu", wrong)
    for wrong in ({"ttl": 0}, {"timeout": -1}, {"max_waiting": -1}, {"on_wait": 5}):
        with pytest.raises(ConfigError):
            client.pool("gpu", [1], **wrong)
    with pytest.raises(ConfigError):
        client.pool("", [1])
    pool = client.pool("gpu", range(4))
    assert (pool.name, pool.items, repr(pool)) == ("gpu", (0, 1, 2, 3), "<Pool 'gpu' of 4 on memory:pool>")
