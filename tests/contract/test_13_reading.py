"""Promise 13: reading a lease does no I/O."""

from __future__ import annotations

import pytest

from lockline import LeaseLost

from .faults import CALLS, Faults
from .scene import Scene


def read_everything(lease: object) -> None:
    for attribute in ("name", "token", "id", "owner", "kind", "ttl", "valid", "lost"):
        getattr(lease, attribute)
    lease.remaining()  # type: ignore[attr-defined]
    lease.lost.is_set()  # type: ignore[attr-defined]
    lease.on_lost(lambda: None)  # type: ignore[attr-defined]
    repr(lease.real)  # type: ignore[attr-defined]


def test_reading_a_lease_asks_the_store_nothing(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    faults = Faults(alice)
    read_everything(lease)
    lease.check()
    assert not [call for call in faults.calls if call != "news"]
    lease.release()


def test_reading_a_lease_works_while_the_store_hangs(world: Scene) -> None:
    alice = world.party()
    ttl = world.ttl(0.3)
    lease = alice.lock("x", ttl=ttl).acquire()
    faults = Faults(alice)
    for call in CALLS:
        if call != "news":
            faults.hang(call)
    world.wait_for(lambda: not lease.valid)
    read_everything(lease)
    with pytest.raises(LeaseLost):
        lease.check()
    faults.heal()


def test_a_lease_tells_who_and_what_it_is(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=7, meta={"job": 42}).acquire()
    assert (lease.name, lease.owner, lease.kind, lease.ttl) == ("x", "alice", "lock", 7.0)
    assert "token" in repr(lease.real)
    assert "s left" in repr(lease.real)
    lease.release()
    assert "released" in repr(lease.real)


def test_loss_calls_back_once_with_the_loss_if_the_callback_wants_it(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    told: list[object] = []
    lease.on_lost(told.append)
    lease.on_lost(lambda: told.append("plain"))
    lease.on_lost(lambda: 1 / 0)
    lease.on_lost(lambda loss=None: told.append("default"))
    world.evict("x")
    world.wait_for(lambda: len(told) == 3)
    assert isinstance(told[0], LeaseLost)
    assert told[1:] == ["plain", "default"]
    with pytest.raises(LeaseLost):
        lease.release()
    assert len(told) == 3
    lease.on_lost(lambda: told.append("late"))
    world.wait_for(lambda: len(told) == 4)


def test_a_release_calls_nobody_back(world: Scene) -> None:
    alice = world.party()
    told: list[object] = []
    lease = alice.lock("x").acquire()
    lease.on_lost(told.append)
    lease.release()
    assert told == []


def test_one_who_waits_for_loss_is_woken_by_release(world: Scene) -> None:
    alice = world.party()
    bob = world.sibling(alice)
    lease = alice.lock("x").acquire()
    waits = lease.given_to(bob).lost.wait.start(10)
    lease.release()
    assert waits.result() is False
