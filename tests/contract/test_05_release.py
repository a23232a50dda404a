"""Promise 5: release removes only one's own claim; after loss it raises LeaseLost and the next holder is untouched."""

from __future__ import annotations

import pytest

from lockline import LeaseLost, NotHeld

from .faults import Faults
from .parties import LONG
from .scene import A_MINUTE, Scene


def test_a_release_after_expiry_leaves_the_next_holder_alone(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    ttl = world.ttl(0.2)
    late = alice.lock("x", ttl=ttl, renew=False).acquire()
    taken = bob.lock("x").acquire(timeout=A_MINUTE)
    before = world.line("x").holders[0]
    with pytest.raises(LeaseLost) as caught:
        late.release()
    assert caught.value.reason == "expired"
    assert caught.value.token == late.token
    (held,) = world.line("x").claims
    assert (held.id, held.token) == (before.id, before.token)
    assert held.remaining > LONG / 2
    assert taken.valid
    taken.release()


def test_a_release_after_eviction_leaves_the_next_holder_alone(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    late = alice.lock("x").acquire()
    world.evict("x")
    taken = bob.lock("x").acquire(timeout=A_MINUTE)
    with pytest.raises(LeaseLost) as caught:
        late.release()
    assert caught.value.reason == "evicted"
    assert [held.id for held in world.line("x").claims] == [taken.id]
    taken.release()


@pytest.mark.core
def test_a_second_release_is_an_error(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    lease.release()
    for _ in range(2):
        with pytest.raises(NotHeld, match="released already"):
            lease.release()
    with pytest.raises(RuntimeError):
        lease.release()


def test_a_second_release_does_not_free_what_others_took_meanwhile(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    lease.release()
    taken = bob.lock("x").acquire()
    with pytest.raises(NotHeld):
        lease.release()
    assert [held.id for held in world.line("x").claims] == [taken.id]
    taken.release()


@pytest.mark.core
def test_a_released_lease_says_so(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    token = lease.token
    lease.release()
    assert not lease.valid
    assert lease.remaining() == 0.0
    assert not lease.lost.is_set()
    assert lease.token == token
    with pytest.raises(NotHeld):
        lease.check()
    with pytest.raises(NotHeld):
        lease.extend(5)
    assert lease.lost.wait(0.05) is False


@pytest.mark.core
def test_two_users_of_one_lock_object_do_not_share_a_lease(world: Scene) -> None:
    """Release by one and acquire by the other overlap on one object, which therefore must not keep the token."""
    alice = world.party()
    bob = world.sibling(alice)
    lock = alice.lock("x")
    lease = lock.acquire()
    (waits,) = world.queue_up("x", lambda: lock.given_to(bob).acquire.start())
    Faults(alice).delay("leave", 0.2, after=True)
    releasing = lease.release.start()
    taken = waits.result()
    releasing.result()
    assert taken.valid
    assert [held.id for held in world.line("x").claims] == [taken.id]
    taken.release()


@pytest.mark.core
def test_a_lease_that_expired_in_one_task_does_not_release_that_of_another(world: Scene) -> None:
    alice = world.party()
    bob = world.sibling(alice)
    ttl = world.ttl(0.2)
    late = alice.lock("x", ttl=ttl, renew=False).acquire()
    taken = bob.lock("x").acquire(timeout=A_MINUTE)
    with pytest.raises(LeaseLost):
        late.release()
    assert taken.valid
    assert [held.id for held in world.line("x").claims] == [taken.id]
    taken.release()


def test_a_try_that_failed_holds_nothing_that_could_be_released(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    for _ in range(20):
        assert bob.lock("x").try_acquire() is None
    assert [held.id for held in world.line("x").claims] == [lease.id]
    lease.release()
    bob.lock("x").try_acquire().release()


@pytest.mark.needs("read_write")
def test_releasing_one_reader_leaves_the_others(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    one, two = alice.read("x").acquire(), bob.read("x").acquire()
    one.release()
    assert two.valid
    assert alice.write("x").try_acquire() is None
    two.release()
    alice.write("x").try_acquire().release()


@pytest.mark.needs("read_write")
def test_releasing_a_read_inside_a_write_keeps_the_write(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    writing = alice.write("x").acquire()
    reading = alice.read("x").acquire()
    reading.release()
    assert writing.valid
    assert bob.read("x").try_acquire() is None
    writing.release()
    bob.read("x").try_acquire().release()


def test_a_released_lock_goes_to_the_next_long_before_its_ttl(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x").acquire.start())
    lease.release()
    waits.result().release()
