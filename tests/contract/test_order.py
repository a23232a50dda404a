"""Every wait is first come, first served, and pushed: for locks, readers, writers and permits alike."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from ..calm import calm
from .parties import Party, Pending
from .scene import Scene


@pytest.fixture(autouse=True)
def _fair(world: Scene) -> None:
    if not world.party("asks").client.guarantees.fifo:
        pytest.skip(f"{world.world.name} does not promise the order of arrival")


def test_first_come_first_served(world: Scene) -> None:
    alice = world.party()
    others = [world.party() for _ in range(3)] + [world.sibling(alice) for _ in range(3)]
    lease = alice.lock("x").acquire()
    waiting = world.queue_up("x", *((lambda p=party: p.lock("x").acquire.start()) for party in others))
    line = [claim.id for claim in world.line("x").waiters]
    lease.release()
    order = []
    for number, pending in enumerate(waiting):
        granted = pending.result(2)
        assert not any(later.done for later in waiting[number + 1 :])
        order.append(granted.id)
        granted.release()
    assert order == line


def test_nobody_overtakes_those_who_wait(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    lease = alice.read("x").acquire()
    (writes,) = world.queue_up("x", lambda: bob.write("x").acquire.start())
    # There is room for another reader beside Alice, but Bob came first.
    assert carol.read("x").try_acquire() is None
    (reads,) = world.queue_up("x", lambda: carol.read("x").acquire.start())
    lease.release()
    writing = writes.result(2)
    assert not reads.done
    writing.release()
    reads.result(2).release()


def test_a_try_does_not_overtake(world: Scene) -> None:
    alice, bob, carol = world.party(), world.party(), world.party()
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", lambda: bob.lock("x").acquire.start())
    assert carol.lock("x").try_acquire() is None
    lease.release()
    granted = waits.result(2)
    assert carol.lock("x").try_acquire() is None
    granted.release()


def test_writer_reader_writer_do_not_wait_for_each_other(world: Scene) -> None:
    """W1 holds, R and W2 queue up behind it: each gets its turn."""
    alice, bob, carol = world.party(), world.party(), world.party()
    first = alice.write("x").acquire()
    reads, second = world.queue_up("x", lambda: bob.read("x").acquire.start(), lambda: carol.write("x").acquire.start())
    first.release()
    reading = reads.result(2)
    assert not second.done
    reading.release()
    second.result(2).release()


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
    reading = [pending.result(2) for pending in waiting[:4]]
    assert not waiting[4].done
    assert not waiting[5].done
    for lease in reading:
        lease.release()
    writing = waiting[4].result(2)
    assert not waiting[5].done
    writing.release()
    waiting[5].result(2).release()


def test_a_writer_is_not_starved_by_readers_that_keep_coming(world: Scene) -> None:
    alice, bob, writer = world.party(), world.party(), world.party()
    lease = alice.read("x").acquire()
    (writes,) = world.queue_up("x", lambda: writer.write("x").acquire.start())
    (later,) = world.queue_up("x", lambda: bob.read("x").acquire.start())
    lease.release()
    writes.result(2).release()
    later.result(2).release()


def test_a_semaphore_never_has_more_holders_than_its_limit(world: Scene) -> None:
    alice = world.party()
    many = [world.sibling(alice) for _ in range(6)] + [world.party() for _ in range(6)]
    inside, most, mutex = 0, 0, threading.Lock()
    grants = 0

    def work(party: Party) -> None:
        nonlocal inside, most, grants
        for turn in range(6):
            permits = party.semaphore("x", limit=3)
            lease = permits.try_acquire() if turn % 3 == 0 else permits.acquire(timeout=20)
            if lease is None:
                continue
            with mutex:
                inside, grants = inside + 1, grants + 1
                most = max(most, inside)
            time.sleep(0.002)
            with mutex:
                inside -= 1
            lease.release()

    workers = [threading.Thread(target=work, args=(party,)) for party in many]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
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
        worker.join(60)
        assert not worker.is_alive()
    assert not clashes
    assert len(tokens) == 80
    assert tokens == sorted(tokens)


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


def test_one_who_gives_up_makes_way_for_those_behind(world: Scene) -> None:
    """A reader holds, a writer waits and gives up: the reader behind the writer gets in at that moment."""
    alice, bob, carol = world.party(), world.party(), world.party()
    lease = alice.read("x", ttl=60).acquire()
    writes, reads = world.queue_up(
        "x",
        lambda: bob.write("x", ttl=60).acquire.start(timeout=world.ttl(0.6)),
        lambda: carol.read("x", ttl=60).acquire.start(),
    )
    with pytest.raises(TimeoutError):
        writes.result(2)
    reads.result(2).release()
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
    waits.result(ttl * 1.5 + 1).release()


def test_a_release_between_the_look_and_the_wait_is_not_missed(world: Scene) -> None:
    """The waiter is held up after it has stood in line and before it listens; the release comes just then."""
    alice, bob = world.party(), world.party()
    lease = alice.lock("x", ttl=60).acquire()
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
    waits = bob.lock("x", ttl=60).acquire.start()
    assert reached.wait(5)
    lease.release()
    go.set()
    granted: Pending = waits
    granted.result(0.5 * world.world.patience).release()


def test_a_hand_over_is_pushed_and_not_polled_for(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    if not alice.client.guarantees.push:
        pytest.skip(f"{world.world.name} does not promise a push")
    took = []
    for _ in range(10):
        lease = alice.lock("x", ttl=60).acquire()
        (waits,) = world.queue_up("x", lambda: bob.lock("x", ttl=60).acquire.start())
        began = calm()
        lease.release()
        granted = waits.result(2)
        took.append(calm() - began)
        granted.release()
    assert sorted(took)[5] < 0.1 * world.world.patience
