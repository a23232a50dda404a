"""Promise 15: one client serves any number of locks, threads and waiters with O(1) connections and one keeper."""

from __future__ import annotations

import os
import resource
import threading
import time
from functools import partial

import pytest

from ..tier import sample
from .parties import Party
from .scene import A_MINUTE, Scene


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_many_locks_and_waiters_through_one_client_need_no_more_connections(world: Scene) -> None:
    alice = world.party()
    many = [world.sibling(alice) for _ in range(30)]
    leases = [alice.lock("warm-up").acquire()]
    (waits,) = world.queue_up("warm-up", lambda: many[0].lock("warm-up").acquire.start())
    leases.pop().release()
    waits.result().release()
    files, threads = open_files(), threading.active_count()
    leases = [alice.lock(f"x{number}").acquire() for number in range(100)]
    waiting = world.queue_up("x0", *((lambda p=party: p.lock("x0").acquire.start()) for party in many))
    assert open_files() <= files + world.world.more_files
    assert threading.active_count() <= threads + 2
    for lease in leases:
        lease.release()
    tokens = []
    for lease in world.in_turn(waiting):
        tokens.append(lease.token)
        lease.release()
    assert tokens == sorted(tokens)


def test_a_busy_client_does_not_start_a_keeper_each_time(world: Scene) -> None:
    alice = world.party()
    alice.lock("x").acquire().release()
    before = threading.active_count()
    for _ in range(100):
        alice.lock("x").acquire().release()
        assert threading.active_count() <= before + 1


@pytest.mark.needs("semaphores")
def test_one_semaphore_object_serves_many_at_once(world: Scene) -> None:
    alice = world.party()
    permits = alice.semaphore("x", limit=20)
    many = [world.sibling(alice) for _ in range(20)]
    pending = [permits.given_to(party).acquire.start(timeout=A_MINUTE) for party in many]
    leases = [one.result() for one in pending]
    assert len({lease.token for lease in leases}) == 20
    assert permits.try_acquire() is None
    for lease in leases:
        lease.release()
    assert not world.line("x").claims


@pytest.mark.slow
@pytest.mark.needs("has_lines")
def test_many_locks_and_as_many_waiters_are_granted_in_order(world: Scene) -> None:
    """Locks held and tasks or threads waiting through one client, a thousand of each in the full run: bounded threads and files, in order."""
    many = sample(100, 1000)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft >= 256
    alice = world.party()
    held = [alice.lock(f"x{number}").acquire() for number in range(many)]
    files, threads = open_files(), threading.active_count()
    crowd: list[Party] = []
    waiting = []
    for number in range(many):
        party = world.sibling(alice, f"waiter-{number}")
        crowd.append(party)
        waiting.append(party.lock("x0").acquire.start())
        if number % 50 == 49:
            # In bunches, so that the order of arrival is known from bunch to bunch and within them from the line itself.
            world.wait_for(partial(lambda n: len(world.line("x0").waiters) == n + 1, number))
    # At rest: on `local:` a step that stands still for long, as a busy disk may make it, is passed by others with files of their own.
    world.wait_for(lambda: open_files() <= files + world.world.most_files)
    own_threads = many if world.flavour == "sync" else 0
    assert threading.active_count() <= threads + own_threads + 3
    order = [claim.id for claim in world.line("x0").waiters]
    assert len(order) == many
    for lease in held:
        lease.release()
    granted = []
    left = set(range(many))
    until = time.monotonic() + 200
    while left:
        assert time.monotonic() < until, f"{len(left)} still wait"
        done = [number for number in left if waiting[number].done]
        if not done:
            time.sleep(0.001)  # Whoever looks without pause keeps the interpreter from those it looks for.
        for number in done:
            lease = waiting[number].result()
            granted.append((lease.token, lease.id))
            left.discard(number)
            lease.release()
    assert [claim_id for _, claim_id in granted] == order
    assert [token for token, _ in granted] == sorted(token for token, _ in granted)
    assert not world.line("x0").claims
