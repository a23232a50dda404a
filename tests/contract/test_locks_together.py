# ruff: noqa: PT012 - the blocks are the story here
"""Several locks at once: in one order, under one deadline, all or nothing, and lost as soon as one is."""

from __future__ import annotations

import time
from typing import Any

import pytest

import lockline
from lockline import AcquireTimeout, ConfigError, LeaseLost, NotHeld, WouldDeadlock, aio

from .faults import Faults
from .parties import LONG
from .scene import A_MINUTE, Scene


class OwnError(Exception):
    """What goes wrong in a body."""


def test_all_of_them_are_held_each_under_a_token_of_its_own(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    with alice.locks("b", "a", "c", "a", timeout=A_MINUTE) as leases:
        assert list(leases.real) == ["a", "b", "c"]
        assert leases.tokens == {name: world.line(name).holders[0].token for name in "abc"}
        assert leases.valid
        assert 0 < leases.remaining() <= LONG
        assert all(bob.lock(name).try_acquire() is None for name in "abc")
    assert world.names() == []
    with pytest.raises(NotHeld):
        leases.check()


def test_nothing_is_held_when_one_of_them_did_not_come_in_time(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("b").acquire()
    with pytest.raises(AcquireTimeout, match="'b'"), bob.locks("a", "b", "c", timeout=0.3):
        raise AssertionError("the body ran without its leases")
    world.wait_for(lambda: world.names() == ["b"])
    assert len(world.line("b").claims) == 1
    with pytest.raises(AcquireTimeout):
        bob.locks("a", "b").acquire(timeout=0.3)
    lease.release()
    bob.locks("a", "b").acquire(timeout=A_MINUTE).release()


def test_one_deadline_is_for_all_of_them(world: Scene) -> None:
    """Each of those that are taken may not use the whole timeout again."""
    alice, bob = world.party(), world.party()
    held = [alice.lock(name).acquire() for name in "ab"]
    timeouts: list[float] = []
    engine = bob.client.real._engine
    acquire = engine.acquire

    def noted(terms: Any, timeout: float, *args: Any, **options: Any) -> Any:
        timeouts.append(timeout)
        return acquire(terms, timeout, *args, **options)

    engine.acquire = noted
    waiting = bob.locks("a", "b").acquire.start(timeout=A_MINUTE)
    world.wait_for_line("a", waiters=1)
    time.sleep(0.5)
    held[0].release()
    world.wait_for_line("b", waiters=1)
    first, second = timeouts
    assert first <= A_MINUTE
    assert second <= A_MINUTE - 0.5
    held[1].release()
    waiting.result().release()


def test_two_who_name_them_in_another_order_do_not_wait_for_each_other(world: Scene) -> None:
    parties = [world.party(), world.party()]
    for _ in range(5):
        begun = [
            party.locks(*names).acquire.start() for party, names in zip(parties, (("a", "b"), ("b", "a")), strict=True)
        ]
        for leases in world.in_turn(begun):
            leases.release()


def test_the_loss_of_one_is_the_loss_of_all(world: Scene) -> None:
    alice = world.party()
    told: list[str] = []
    with pytest.raises(LeaseLost, match="'b'"), alice.locks("a", "b", "c") as leases:
        leases.real.on_lost(lambda lost: told.append(lost.name))
        assert leases.lost.is_set() is False
        world.evict("b")
        world.wait_for(lambda: leases.lost.is_set())
        assert not leases.valid
    assert world.names() == []
    world.wait_for(lambda: told == ["b"])
    # Whoever works on afterwards is not haunted by a cancel that has been dealt with.
    alice.locks("a", "b").acquire(timeout=A_MINUTE).release()


def test_the_loss_of_two_is_told_once(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    leases = alice.locks("a", "b").acquire()
    told: list[bool] = []
    each: list[str] = []
    leases.real.on_lost(lambda: told.append(True))
    for lease in leases.real.values():
        lease.on_lost(lambda lost: each.append(lost.name))
    waiting = leases.given_to(world.sibling(alice)).lost.wait.start(timeout=A_MINUTE)
    bob.client.evict("a")
    bob.client.evict("b")
    assert waiting.result() is True
    world.wait_for(lambda: not (leases.real["a"].valid or leases.real["b"].valid))
    with pytest.raises(LeaseLost):
        leases.release()
    world.wait_for(lambda: told and sorted(each) == ["a", "b"], what="the word of both losses")
    assert told == [True]


def test_waiting_for_a_loss_ends_when_they_are_released(world: Scene) -> None:
    alice = world.party()
    leases = alice.locks("a", "b").acquire()
    assert leases.lost.wait(0.01) is False
    waiting = leases.given_to(world.sibling(alice)).lost.wait.start()
    leases.release()
    assert waiting.result() is False
    with pytest.raises(NotHeld):
        leases.release()


def test_the_bodys_error_comes_out_and_all_are_free(world: Scene) -> None:
    alice = world.party()
    with pytest.raises(OwnError), alice.locks("a", "b"):
        raise OwnError
    assert world.names() == []


def test_a_release_that_fails_for_one_gives_back_the_others(world: Scene) -> None:
    alice = world.party()
    faults = Faults(alice)
    with pytest.raises(lockline.BackendUnavailable), alice.locks("a", "b", "c"):
        faults.fail("leave")
    world.wait_for(lambda: world.names() == [])


@pytest.mark.flavour("asyncio")
def test_a_cancel_in_the_middle_leaves_nothing(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("b").acquire()
    waiting = bob.locks("a", "b").acquire.start()
    world.wait_for_line("b", waiters=1)
    waiting.cancel()
    world.wait_for(lambda: world.names() == ["b"] and len(world.line("b").claims) == 1)
    lease.release()


def test_who_holds_one_of_them_already_is_told_so_and_gets_none(world: Scene) -> None:
    alice = world.party()
    with alice.lock("b"):
        with pytest.raises(WouldDeadlock):
            alice.locks("a", "b").acquire()
        assert world.names() == ["b"]


@pytest.mark.parametrize("connect", [lockline.connect, aio.connect], ids=["sync", "asyncio"])
def test_what_is_wrong_is_said_before_any_request(connect: type) -> None:
    client = connect("memory:together")
    for names in ((), ("a", ""), ("a", 5), (["a", "b"],)):
        with pytest.raises(ConfigError):
            client.locks(*names)
    for wrong in ({"ttl": 0}, {"timeout": -1}, {"renew": 1}, {"max_hold": 0}, {"meta": 5}):
        with pytest.raises(ConfigError):
            client.locks("a", **wrong)
    assert client.locks("b", "a").names == ("a", "b")
    assert repr(client.locks("b", "a")) == "<Locks 'a', 'b' on memory:together>"
