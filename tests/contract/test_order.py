"""Every wait is first come, first served, and pushed: for locks, readers, writers and permits alike."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from .faults import never_looks
from .parties import STUCK, Party
from .scene import A_MINUTE, Scene

pytestmark = pytest.mark.needs("has_lines")


def test_first_come_first_served(world: Scene) -> None:
    alice = world.party()
    others = [world.party() for _ in range(3)] + [world.sibling(alice) for _ in range(3)]
    lease = alice.lock("x").acquire()
    waiting = world.queue_up("x", *((lambda p=party: p.lock("x").acquire.start()) for party in others))
    line = [claim.id for claim in world.line("x").waiters]
    lease.release()
    order = []
    for number, pending in enumerate(waiting):
        granted = pending.result()
        assert not any(later.done for later in waiting[number + 1 :])
        order.append(granted.id)
        granted.release()
    assert order == line


@pytest.mark.needs("read_write")
def test_nobody_overtakes_those_who_wait(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    lease = alice.read("x").acquire()
    (writes,) = world.queue_up("x", lambda: bob.write("x").acquire.start())
    # There is room for another reader beside Alice, but Bob came first.
    assert carol.read("x").try_acquire() is None
    (reads,) = world.queue_up("x", lambda: carol.read("x").acquire.start())
    lease.release()
    writing = writes.result()
    assert not reads.done
    writing.release()
    reads.result().release()


def test_a_try_does_not_overtake(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x").acquire.start())
    assert carol.lock("x").try_acquire() is None
    lease.release()
    granted = waits.result()
    assert carol.lock("x").try_acquire() is None
    granted.release()


@pytest.mark.needs("read_write")
def test_writer_reader_writer_do_not_wait_for_each_other(world: Scene) -> None:
    """W1 holds, R and W2 queue up behind it: each gets its turn."""
    alice, bob, carol = world.party(), world.party(), world.party()
    first = alice.write("x").acquire()
    reads, second = world.queue_up("x", lambda: bob.read("x").acquire.start(), lambda: carol.write("x").acquire.start())
    first.release()
    reading = reads.result()
    assert not second.done
    reading.release()
    second.result().release()


@pytest.mark.needs("read_write")
def test_readers_that_follow_each_other_are_let_in_together(world: Scene) -> None:
    alice = world.party()
    readers = [world.party() for _ in range(4)]
    writer = world.party()
    last = world.party()
    held = alice.write("x").acquire()
    waiting = world.queue_up(
        "x",
        *((lambda p=reader: p.read("x").acquire.start()) for reader in readers),
        lambda: writer.write("x").acquire.start(),
        lambda: last.read("x").acquire.start(),
    )
    held.release()
    reading = [pending.result() for pending in waiting[:4]]
    assert not waiting[4].done
    assert not waiting[5].done
    for lease in reading:
        lease.release()
    writing = waiting[4].result()
    assert not waiting[5].done
    writing.release()
    waiting[5].result().release()


@pytest.mark.needs("read_write")
def test_a_writer_is_not_starved_by_readers_that_keep_coming(world: Scene) -> None:
    alice, bob, writer = world.party(), world.party(), world.party()
    lease = alice.read("x").acquire()
    (writes,) = world.queue_up("x", lambda: writer.write("x").acquire.start())
    (later,) = world.queue_up("x", lambda: bob.read("x").acquire.start())
    lease.release()
    writes.result().release()
    later.result().release()


@pytest.mark.needs("semaphores")
def test_a_semaphore_never_has_more_holders_than_its_limit(world: Scene) -> None:
    alice = world.party()
    many = [world.sibling(alice) for _ in range(6)] + [world.party() for _ in range(6)]
    inside, most, mutex = 0, 0, threading.Lock()
    grants, met = 0, threading.Event()

    def work(party: Party) -> None:
        nonlocal inside, most, grants
        for turn in range(6):
            permits = party.semaphore("x", limit=3)
            lease = permits.try_acquire() if turn % 3 == 0 else permits.acquire(timeout=A_MINUTE)
            if lease is None:
                continue
            with mutex:
                inside, grants = inside + 1, grants + 1
                most = max(most, inside)
                if most >= 2:
                    met.set()
            # The first one stays until another is inside as well, for whom there is room: on a busy machine they might never meet.
            met.wait(A_MINUTE)
            time.sleep(0.002)
            with mutex:
                inside -= 1
            lease.release()

    workers = [threading.Thread(target=work, args=(party,)) for party in many]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(STUCK)
        assert not worker.is_alive()
    assert 2 <= most <= 3
    assert grants >= len(many) * 4
    assert not world.line("x").claims


def test_never_two_inside_whoever_asks(world: Scene) -> None:
    alice = world.party()
    many = [world.sibling(alice) for _ in range(4)] + [world.party() for _ in range(4)]
    inside: list[str] = []
    clashes: list[list[str]] = []
    tokens: list[int] = []

    def work(party: Party) -> None:
        for _ in range(10):
            with party.lock("x") as lease:
                inside.append(party.name)
                if len(inside) > 1:
                    clashes.append(list(inside))
                tokens.append(lease.token)
                inside.remove(party.name)

    workers = [threading.Thread(target=work, args=(party,)) for party in many]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(STUCK)
        assert not worker.is_alive()
    assert not clashes
    assert len(tokens) == 80
    assert tokens == sorted(tokens)


@pytest.mark.needs("semaphores")
def test_the_smaller_limit_decides_where_two_disagree(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    one = alice.semaphore("x", limit=5).acquire()
    two = bob.semaphore("x", limit=2).acquire()
    assert carol.semaphore("x", limit=5).try_acquire() is None
    two.release()
    three = carol.semaphore("x", limit=5).try_acquire()
    assert three is not None
    for lease in (one, three):
        lease.release()


@pytest.mark.needs("read_write")
def test_one_who_gives_up_makes_way_for_those_behind(world: Scene) -> None:
    """A reader holds, a writer waits and gives up: the reader behind the writer gets in at that moment."""
    alice, bob, carol = world.party(), world.party(), world.party()
    lease = alice.read("x").acquire()
    writes, reads = world.queue_up(
        "x",
        lambda: bob.write("x").acquire.start(timeout=5),
        lambda: carol.read("x").acquire.start(),
    )
    with pytest.raises(TimeoutError):
        writes.result()
    reads.result().release()
    lease.release()


@pytest.mark.processes
def test_a_waiter_that_died_makes_way_within_its_own_ttl(world: Scene) -> None:
    alice, carol = world.party(), world.party()
    ttl = world.ttl(0.5)
    lease = alice.lock("x").acquire()
    dead = world.process()
    dead.send("acquire", name="x", ttl=ttl)
    world.wait_for_line("x", waiters=1)
    (waits,) = world.queue_up("x", lambda: carol.lock("x").acquire.start())
    dead.kill()
    lease.release()
    waits.result().release()


def test_a_release_between_the_look_and_the_wait_is_not_missed(world: Scene) -> None:
    """The waiter is held up after it has stood in line and before it listens; the release comes just then."""
    alice, bob = world.party(), world.party()
    lease = alice.lock("x").acquire()
    engine = bob.client.real._engine
    backend = engine.backend
    real_enter = backend.enter
    reached, go = threading.Event(), threading.Event()

    async def slow_enter(claim: object, **options: Any) -> object:
        answer = await real_enter(claim, **options)
        reached.set()
        while not go.is_set():
            await engine.runtime.sleep(0.005)
        return answer

    backend.enter = slow_enter
    waits = bob.lock("x").acquire.start()
    assert reached.wait(A_MINUTE)
    lease.release()
    go.set()
    waits.result().release()


@pytest.mark.needs("pushes")
def test_a_hand_over_is_pushed_and_not_polled_for(world: Scene) -> None:
    """No look is due while anybody waits here: a push brings the turn, or nothing does."""
    alice, bob = world.party(), world.party()
    never_looks(bob)
    for _ in range(5):
        lease = alice.lock("x").acquire()
        (waits,) = world.queue_up("x", lambda: bob.lock("x").acquire.start())
        lease.release()
        waits.result().release()
