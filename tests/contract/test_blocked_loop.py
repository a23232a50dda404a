# ruff: noqa: PT012 - the blocks are the story here
"""keeper="thread": the leases of a loop that blocks are renewed, and the loop hears of a loss all the same."""

from __future__ import annotations

import asyncio
import threading

import pytest

from lockline import AcquireTimeout, ConfigError, LeaseLost, WouldDeadlock, aio

from .scene import A_MINUTE, Scene

pytestmark = pytest.mark.flavour("asyncio")


def test_the_leases_of_a_loop_that_blocks_are_renewed(world: Scene) -> None:
    alice = world.party(keeper="thread")
    lease = alice.lock("x").acquire()

    async def block() -> None:
        world.wait_for_renewal(lease)  # which sleeps, and lets no other task run: that is the story

    alice.do(block)
    assert lease.valid
    assert world.party().lock("x").try_acquire() is None
    lease.release()
    assert not world.line("x").claims


def test_a_loss_reaches_the_body_on_the_callers_loop(world: Scene) -> None:
    alice = world.party(keeper="thread")
    told: list[threading.Thread] = []
    with pytest.raises(LeaseLost), alice.lock("x") as lease:
        lease.real.on_lost(lambda: told.append(threading.current_thread()))
        world.evict("x")
        world.wait_for(lambda: lease.lost.is_set())
    world.wait_for(lambda: told)
    assert told[0].name == "scene-loop"
    alice.lock("x").acquire(timeout=A_MINUTE).release()


def test_waits_timeouts_and_cancels_are_as_ever(world: Scene) -> None:
    alice, bob = world.party(keeper="thread"), world.party(keeper="thread")
    lease = alice.lock("x").acquire()
    with pytest.raises(AcquireTimeout):
        bob.lock("x").acquire(timeout=0.3)
    waiting = bob.lock("x").acquire.start()
    world.wait_for(lambda: len(world.line("x").claims) == 2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        waiting.result()
    world.wait_for(lambda: len(world.line("x").claims) == 1)
    waiting = bob.lock("x").acquire.start()
    lease.release()
    waiting.result().release()


def test_who_asks_again_is_known_by_its_own_task(world: Scene) -> None:
    alice = world.party(keeper="thread")
    with alice.rlock("x") as outer:
        with alice.rlock("x") as inner:
            assert inner.token == outer.token
        with pytest.raises(WouldDeadlock):
            alice.lock("x").acquire(timeout=A_MINUTE)
    assert not world.line("x").claims


def test_close_gives_back_what_is_held(world: Scene) -> None:
    alice, bob = world.party(keeper="thread"), world.party()
    lease = alice.lock("x").acquire()
    alice.client.close()
    bob.lock("x").acquire(timeout=A_MINUTE).release()
    with pytest.raises(LeaseLost):
        lease.release()


def test_there_is_no_other_keeper() -> None:
    with pytest.raises(ConfigError, match="keeper"):
        aio.connect("memory:", keeper="process")  # type: ignore[arg-type]
