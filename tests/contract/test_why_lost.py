"""A loss says why, as a value and with the cure: not only that it happened."""

from __future__ import annotations

import gc
import pickle
import time
import warnings

import pytest

from lockline import ConfigError, LeaseLost

from .faults import Faults
from .scene import A_MINUTE, Scene


def loss_of(lease: object) -> LeaseLost:
    with pytest.raises(LeaseLost) as caught:
        lease.check()  # type: ignore[attr-defined]
    return caught.value


def test_a_store_that_is_silent(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=world.ttl(0.6)).acquire()
    Faults(alice).fail("renew", times=None)
    assert lease.lost.wait(A_MINUTE)
    lost = loss_of(lease)
    assert (lost.reason, lost.cause) == ("expired", "silent")
    assert "no answer to renew" in str(lost)


def test_an_eviction(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    world.evict("x")
    assert lease.lost.wait(A_MINUTE)
    lost = loss_of(lease)
    assert (lost.reason, lost.cause) == ("evicted", "gone")


def test_a_thread_or_task_that_has_ended(world: Scene) -> None:
    alice = world.party()
    other = world.sibling(alice)
    lease = other.lock("x", ttl=world.ttl(0.3)).acquire().given_to(alice)
    other.end()
    assert lease.lost.wait(A_MINUTE)
    lost = loss_of(lease)
    assert (lost.reason, lost.cause) == ("expired", "ended")
    assert "adopt()" in str(lost)


def test_a_lease_that_nobody_was_to_renew(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=world.ttl(0.3), renew=False).acquire()
    assert lease.lost.wait(A_MINUTE)
    assert loss_of(lease).cause == "unrenewed"


def test_a_hold_that_was_limited(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", max_hold=0.3).acquire()
    assert lease.lost.wait(A_MINUTE)
    assert loss_of(lease).cause == "max_hold"


def test_a_client_that_was_closed(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    alice.client.close()
    lost = loss_of(lease)
    assert (lost.reason, lost.cause) == ("closed", "closed")


@pytest.mark.flavour("asyncio")
def test_a_loop_that_was_blocked(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x", ttl=world.ttl(0.3)).acquire()
    alice.do(lambda: time.sleep(2 * lease.ttl))
    assert loss_of(lease).cause in ("paused", "session")


def test_the_loss_travels_between_processes_whole(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    world.evict("x")
    assert lease.lost.wait(A_MINUTE)
    lost = loss_of(lease)
    copy = pickle.loads(pickle.dumps(lost))
    assert (str(copy), vars(copy)) == (str(lost), vars(lost))


def test_each_time_it_is_told_it_is_an_error_of_its_own(world: Scene) -> None:
    """One error object, raised in many places, would carry their traces and contexts from one to the other."""
    alice = world.party()
    lease = alice.lock("x").acquire()
    world.evict("x")
    assert lease.lost.wait(A_MINUTE)
    one, two = loss_of(lease), loss_of(lease)
    assert one is not two
    assert str(one) == str(two)


def test_a_result_that_is_dropped_is_warned_of_where_it_happens(world: Scene) -> None:
    """The habit from threading and redis-py: nothing renews what nobody holds."""
    alice = world.party()

    def work() -> None:
        alice.client.real.lock("x").acquire()

    async def async_work() -> None:
        await alice.client.real.lock("x").acquire()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        alice.do(work if world.flavour == "sync" else async_work)
        gc.collect()
    told = [warning for warning in caught if "dropped without release" in str(warning.message)]
    assert told
    assert not issubclass(told[0].category, ResourceWarning), "hidden by default"
    assert "with" in str(told[0].message)
    assert told[0].filename == __file__


def test_a_lock_has_a_release_that_explains(world: Scene) -> None:
    alice = world.party()
    lock = alice.lock("x").real
    with pytest.raises(ConfigError, match=r"lease\.release\(\)"):
        lock.release()
