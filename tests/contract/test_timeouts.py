"""A lock has its own timeout, says where it stands, and refuses a line that is too long."""

from __future__ import annotations

import pytest

import lockline
from lockline import AcquireTimeout, BackendUnavailable, ConfigError, LineFull, NotHeld, aio

from .scene import A_MINUTE, Scene


class OwnError(Exception):
    """What goes wrong in a callback."""


def test_with_waits_no_longer_than_the_locks_own_timeout(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    with pytest.raises(AcquireTimeout) as late, bob.lock("x", timeout=0.3):
        raise AssertionError("the body ran without the lease")
    assert late.value.waited >= 0.3
    assert len(world.line("x").claims) == 1
    lease.release()
    with bob.lock("x", timeout=A_MINUTE) as lease:
        assert lease.valid


def test_what_acquire_is_told_counts_for_more_than_the_locks_own_timeout(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    lock = bob.lock("x", timeout=A_MINUTE)
    with pytest.raises(AcquireTimeout):
        lock.acquire(timeout=0.3)
    with pytest.raises(AcquireTimeout):
        bob.lock("x", timeout=0.2).acquire()
    lease.release()


def test_a_re_entrant_lock_takes_a_timeout(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.rlock("x").acquire()
    with pytest.raises(AcquireTimeout):
        bob.rlock("x", timeout=0.2).acquire()
    lease.release()


@pytest.mark.needs("read_write", "semaphores")
def test_readers_writers_and_permits_take_a_timeout_too(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    lease = alice.rlock("x").acquire()
    for lock in (bob.read("x", timeout=0.2), bob.write("x", timeout=0.2), bob.semaphore("x", 3, timeout=0.2)):
        with pytest.raises(AcquireTimeout):
            lock.acquire()
    lease.release()


def test_locked_says_whether_one_more_would_have_to_wait(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    assert alice.lock("x").locked() is False
    with alice.lock("x"):
        assert bob.lock("x").locked() is True
        assert alice.lock("x").locked() is True
        assert bob.lock("y").locked() is False
    assert bob.lock("x").locked() is False


@pytest.mark.needs("semaphores")
def test_a_semaphore_is_locked_when_it_has_no_room_for_that_weight(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    with alice.semaphore("x", 3, weight=2):
        assert bob.semaphore("x", 3).locked() is False
        assert bob.semaphore("x", 3, weight=2).locked() is True


@pytest.mark.needs("read_write")
def test_readers_are_locked_out_by_a_writer_only(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    with alice.read("x"):
        assert bob.read("x").locked() is False
        assert bob.write("x").locked() is True
    with alice.write("x"):
        assert bob.read("x").locked() is True


def test_who_waits_is_told_that_it_has_to(world: Scene) -> None:
    alice, carol = world.party(), world.party()
    lease = alice.lock("x").acquire()
    told: list[int] = []
    waiting = carol.lock("x", on_wait=told.append).acquire.start()
    world.wait_for(lambda: told)
    lease.release()
    waiting.result().release()


@pytest.mark.needs("has_lines")
def test_who_waits_is_told_how_many_are_ahead_and_when_that_changes(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    lease = alice.lock("x").acquire()
    told: list[int] = []
    first, waiting = world.queue_up(
        "x", lambda: bob.lock("x").acquire.start(), lambda: carol.lock("x", on_wait=told.append).acquire.start()
    )
    world.wait_for(lambda: told == [2])
    lease.release()
    lease = first.result()
    world.wait_for(lambda: told == [2, 1])
    lease.release()
    waiting.result().release()
    assert told == [2, 1]


def test_nobody_is_told_of_a_wait_that_there_was_not(world: Scene) -> None:
    alice = world.party()
    told: list[int] = []
    alice.lock("x", on_wait=told.append).acquire().release()
    assert told == []


def test_an_error_of_the_callback_ends_the_wait_and_leaves_nothing(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    # The callback may use another lock: what that one's store has or has not got says nothing of ours.
    elsewhere = BackendUnavailable("another store")
    elsewhere.unsent = elsewhere.permanent = True
    lease = alice.lock("x").acquire()
    for problem in (OwnError(), NotHeld("another lease"), elsewhere):

        def fail(ahead: int, problem: Exception = problem) -> None:
            raise problem

        with pytest.raises(type(problem)):
            bob.lock("x", on_wait=fail).acquire()
        world.wait_for(lambda: len(world.line("x").claims) == 1)
    lease.release()


@pytest.mark.lacks("has_lines")
def test_a_store_that_keeps_no_line_refuses_to_bound_one(world: Scene) -> None:
    with pytest.raises(ConfigError, match="keeps no line"):
        world.party().lock("x", max_waiting=1)


@pytest.mark.needs("has_lines")
def test_a_line_that_is_too_long_is_refused_and_nothing_of_it_is_left(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    lease = alice.lock("x", max_waiting=0).acquire()
    with pytest.raises(LineFull) as full:
        bob.lock("x", max_waiting=0).acquire()
    assert (full.value.name, full.value.waiting, full.value.most) == ("x", 0, 0)
    (waiting,) = world.queue_up("x", lambda: bob.lock("x", max_waiting=1).acquire.start())
    with pytest.raises(LineFull), carol.lock("x", max_waiting=1, timeout=A_MINUTE):
        raise AssertionError("the body ran without the lease")
    line = world.line("x")
    assert [claim.owner for claim in line.claims] == ["alice", "bob"]
    lease.release()
    waiting.result().release()


@pytest.mark.needs("semaphores")
def test_those_who_hold_a_semaphore_do_not_count_as_waiting(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    permits = [party.semaphore("x", 2).acquire() for party in (alice, bob)]
    (waiting,) = world.queue_up("x", lambda: carol.semaphore("x", 2, max_waiting=1).acquire.start())
    with pytest.raises(LineFull):
        alice.semaphore("x", 2, max_waiting=1).acquire()
    for permit in permits:
        permit.release()
    waiting.result().release()


def test_clients_locks_and_leases_say_what_they_are(world: Scene) -> None:
    alice = world.party("alice")
    client = alice.client.real
    assert repr(client) == f"<Client of alice on {client.url}>"
    assert repr(client.lock("x", 5)) == f"<Lock 'x' lock, ttl 5 s on {client.url}>"
    if world.world.semaphores:
        assert repr(client.semaphore("x", 5, weight=2)) == f"<Lock 'x' permit 2 of 5, ttl 10 s on {client.url}>"
    if world.world.read_write:
        assert repr(client.rwlock("x")) == f"<RWLock 'x' read-write, ttl 10 s on {client.url}>"
    lease = alice.lock("x").acquire()
    assert f"<Lease 'x' token {lease.token} " in repr(lease.real)
    lease.release()
    assert repr(lease.real) == f"<Lease 'x' token {lease.token} released>"
    alice.client.close()
    assert repr(client) == f"<Client of alice on {client.url}, closed>"


@pytest.mark.parametrize("connect", [lockline.connect, aio.connect], ids=["sync", "asyncio"])
def test_what_is_wrong_is_said_before_any_request(connect: type) -> None:
    client = connect("memory:terms")

    async def awaited(ahead: int) -> None: ...

    for wrong in (
        {"timeout": -1}, {"timeout": "5"}, {"on_wait": 5}, {"on_wait": awaited}, {"max_waiting": -1}, {"max_waiting": True},
        {"max_waiting": 1.5},
    ):  # fmt: skip
        for make in (client.lock, client.rlock, client.rwlock):
            with pytest.raises(ConfigError):
                make("x", **wrong)
        with pytest.raises(ConfigError):
            client.semaphore("x", 3, **wrong)
    for weight in (0, -1, 4, True, 1.0, "1", None):
        with pytest.raises(ConfigError):
            client.semaphore("x", 3, weight=weight)
