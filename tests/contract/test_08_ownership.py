"""Promise 8: a lease belongs to the object, not to a thread; re-entrancy is asked for by name."""

from __future__ import annotations

import pytest

from lockline import ConfigError, LeaseLost, WouldDeadlock

from .parties import LONG
from .scene import A_MINUTE, Scene


def test_a_lease_can_be_released_in_other_hands(world: Scene) -> None:
    alice = world.party()
    bob = world.sibling(alice)
    lease = alice.lock("x").acquire()
    lease.given_to(bob).release()
    assert not world.line("x").claims
    alice.lock("x").acquire(timeout=A_MINUTE).release()


def test_two_lock_objects_of_one_client_exclude_each_other(world: Scene) -> None:
    alice = world.party()
    bob = world.sibling(alice)
    lease = alice.lock("x").acquire()
    assert bob.lock("x").try_acquire() is None
    (waits,) = world.queue_up("x", lambda: bob.lock("x").acquire.start())
    assert not waits.done
    lease.release()
    waits.result().release()


def test_asking_again_for_a_plain_lock_is_an_error_and_not_a_deadlock(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    with pytest.raises(WouldDeadlock, match="rlock"):
        alice.lock("x").acquire()
    with pytest.raises(WouldDeadlock):
        alice.lock("x").acquire(timeout=A_MINUTE)
    assert alice.lock("x").try_acquire() is None
    assert len(world.line("x").claims) == 1
    lease.release()
    alice.lock("x").acquire(timeout=A_MINUTE).release()


def test_a_lease_that_is_lost_is_no_deadlock(world: Scene) -> None:
    alice = world.party()
    ttl = world.ttl(0.2)
    late = alice.lock("x", ttl=ttl, renew=False).acquire()
    world.wait_for(lambda: not late.valid)
    alice.lock("x").acquire(timeout=A_MINUTE).release()
    with pytest.raises(LeaseLost):
        late.release()


def test_a_lease_handed_on_does_not_bind_the_one_who_took_it(world: Scene) -> None:
    alice = world.party()
    bob = world.sibling(alice)
    lease = alice.lock("x").acquire().given_to(bob)
    lease.adopt()
    (waits,) = world.queue_up("x", lambda: alice.lock("x").acquire.start())
    assert not waits.done
    lease.release()
    waits.result().release()


def test_a_lease_handed_on_binds_the_one_who_adopted_it(world: Scene) -> None:
    alice = world.party()
    bob = world.sibling(alice)
    lease = alice.rlock("x").acquire().given_to(bob)
    lease.adopt()
    again = bob.rlock("x").try_acquire()
    assert again is not None
    assert again.token == lease.token
    assert alice.rlock("x").try_acquire() is None
    again.release()
    lease.release()
    assert not world.line("x").claims


def test_an_rlock_may_be_taken_again_under_the_same_token(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    outer = alice.rlock("x").acquire()
    inner = alice.rlock("x").acquire()
    innermost = alice.rlock("x").try_acquire()
    assert outer.token == inner.token == innermost.token
    assert len(world.line("x").claims) == 1
    innermost.release()
    inner.release()
    assert outer.valid
    assert not inner.valid
    assert bob.rlock("x").try_acquire() is None
    outer.release()
    bob.rlock("x").try_acquire().release()


def test_the_outer_of_two_may_be_released_first(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    outer, inner = alice.rlock("x").acquire(), alice.rlock("x").acquire()
    outer.release()
    assert inner.valid
    assert bob.rlock("x").try_acquire() is None
    inner.release()
    bob.rlock("x").try_acquire().release()


def test_rlock_blocks_nest(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lock = alice.rlock("x")
    with lock as outer:
        with lock as inner:
            assert inner.token == outer.token
        assert outer.valid
        assert bob.rlock("x").try_acquire() is None
    assert not world.line("x").claims


def test_an_inner_error_does_not_free_the_outer_rlock(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    with alice.rlock("x") as outer:
        with pytest.raises(KeyError), alice.rlock("x"):
            raise KeyError("inner")
        assert outer.valid
        assert bob.rlock("x").try_acquire() is None


def test_an_inner_ttl_never_shortens_the_outer_lease(world: Scene) -> None:
    alice = world.party()
    outer = alice.rlock("x", renew=False).acquire()
    inner = alice.rlock("x", ttl=0.5).acquire()
    assert outer.remaining() > LONG / 2
    assert world.line("x").holders[0].remaining > LONG / 2
    inner.release()
    assert outer.remaining() > LONG / 2
    outer.release()


def test_an_inner_ttl_that_is_longer_is_given(world: Scene) -> None:
    alice = world.party()
    outer = alice.rlock("x", ttl=LONG / 2, renew=False).acquire()
    inner = alice.rlock("x").acquire()
    assert inner.remaining() > LONG / 2
    inner.release()
    outer.release()


def test_another_thread_or_task_of_the_same_client_waits_for_an_rlock(world: Scene) -> None:
    alice = world.party()
    bob = world.sibling(alice)
    outer = alice.rlock("x").acquire()
    inner = alice.rlock("x").acquire()
    (waits,) = world.queue_up("x", lambda: bob.rlock("x").acquire.start())
    inner.release()
    assert not waits.done
    outer.release()
    taken = waits.result()
    assert taken.token > outer.token
    taken.release()


def test_a_lost_rlock_is_lost_for_every_depth(world: Scene) -> None:
    alice = world.party()
    outer, inner = alice.rlock("x").acquire(), alice.rlock("x").acquire()
    world.evict("x")
    with pytest.raises(LeaseLost):
        outer.extend(10)
    assert not inner.valid
    for lease in (inner, outer):
        with pytest.raises(LeaseLost):
            lease.release()


def test_asking_again_after_loss_is_a_new_claim(world: Scene) -> None:
    alice = world.party()
    late = alice.rlock("x").acquire()
    world.evict("x")
    assert late.lost.wait(A_MINUTE)
    fresh = alice.rlock("x").acquire(timeout=A_MINUTE)
    assert fresh.token > late.token
    assert fresh.valid
    with pytest.raises(LeaseLost):
        late.release()
    assert fresh.valid
    fresh.release()


@pytest.mark.needs("semaphores")
def test_one_party_may_take_several_permits(world: Scene) -> None:
    alice = world.party()
    permits = [alice.semaphore("x", limit=3).acquire(timeout=A_MINUTE) for _ in range(3)]
    assert len({permit.token for permit in permits}) == 3
    assert alice.semaphore("x", limit=3).try_acquire() is None
    permits[1].release()
    assert permits[0].valid
    assert permits[2].valid
    permits[1] = alice.semaphore("x", limit=3).acquire(timeout=A_MINUTE)
    for permit in permits:
        permit.release()


@pytest.mark.needs("read_write")
def test_a_reader_may_read_again(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    outer = alice.read("x").acquire()
    (waits,) = world.queue_up("x", lambda: bob.write("x").acquire.start())
    # A fresh claim would stand behind the writer, who waits for us: the same one is shared instead.
    inner = alice.read("x").acquire(timeout=A_MINUTE)
    assert inner.token == outer.token
    inner.release()
    assert not waits.done
    outer.release()
    waits.result().release()


@pytest.mark.needs("read_write")
def test_a_writer_may_read_and_write_again(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    writing = alice.write("x").acquire()
    reading, again = alice.read("x").acquire(timeout=A_MINUTE), alice.write("x").acquire(timeout=A_MINUTE)
    assert reading.token == again.token == writing.token
    again.release()
    reading.release()
    assert bob.read("x").try_acquire() is None
    writing.release()
    bob.read("x").try_acquire().release()


@pytest.mark.needs("read_write")
def test_a_reader_that_wants_to_write_is_refused_rather_than_stuck(world: Scene) -> None:
    alice = world.party()
    reading = alice.read("x").acquire()
    with pytest.raises(WouldDeadlock, match="downgrade"):
        alice.write("x").acquire()
    assert alice.write("x").try_acquire() is None
    assert reading.valid
    assert len(world.line("x").claims) == 1
    reading.release()
    alice.write("x").acquire(timeout=A_MINUTE).release()


@pytest.mark.needs("read_write")
def test_a_downgrade_lets_readers_in_and_no_writer_between(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    lease = alice.write("x").acquire()
    reads, writes = world.queue_up("x", lambda: bob.read("x").acquire.start(), lambda: carol.write("x").acquire.start())
    lease.downgrade()
    reading = reads.result()
    assert lease.valid
    assert lease.kind == "read"
    assert not writes.done
    assert len(world.line("x").holders) == 2
    lease.release()
    assert not writes.done
    reading.release()
    writes.result().release()


@pytest.mark.needs("read_write")
def test_releasing_the_write_inside_a_read_downgrades(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    writing = alice.write("x").acquire()
    reading = alice.read("x").acquire()
    writing.release()
    assert reading.valid
    other = bob.read("x").try_acquire()
    assert other is not None
    assert bob.write("x").try_acquire() is None
    other.release()
    reading.release()
    assert not world.line("x").claims


@pytest.mark.needs("read_write")
def test_an_inner_downgrade_does_not_take_the_outer_writers_exclusion(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    outer, inner = alice.write("x").acquire(), alice.write("x").acquire()
    inner.downgrade()
    assert outer.valid
    assert bob.read("x").try_acquire() is None
    outer.release()
    other = bob.read("x").try_acquire()
    assert other is not None
    other.release()
    inner.release()
    assert not world.line("x").claims


@pytest.mark.needs("read_write")
def test_a_downgraded_lease_is_still_kept(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.write("x").acquire()
    lease.downgrade()
    waits = bob.write("x").acquire.start()
    world.wait_for_renewal(lease)
    assert lease.valid
    assert not waits.done
    lease.release()
    waits.result().release()


def test_only_a_writer_can_be_downgraded(world: Scene) -> None:
    alice = world.party()
    with alice.lock("x") as lease, pytest.raises(ConfigError, match="write lease"):
        lease.downgrade()
