"""Other processes take part, are frozen, and are killed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .parties import LONG
from .scene import A_MINUTE, Scene

pytestmark = pytest.mark.processes


def test_two_processes_exclude_each_other(world: Scene) -> None:
    alice, other = world.party(), world.process()
    token = other.ask("acquire", name="x")["token"]
    assert alice.lock("x").try_acquire() is None
    (waits,) = world.queue_up("x", lambda: alice.lock("x").acquire.start())
    assert other.ask("release") == {}
    lease = waits.result()
    assert lease.token > token
    assert other.ask("try_acquire", name="x")["token"] is None
    lease.release()


@pytest.mark.needs("has_lines", "pushes")
def test_a_hand_over_to_another_process_is_pushed(world: Scene) -> None:
    """No look of the one that waits is due before a minute has passed, and nobody waits so long for its answer."""
    alice, other = world.party(), world.process()
    other.ask("look_seldom")
    lease = alice.lock("x").acquire()
    other.send("acquire", name="x")
    world.wait_for_line("x", waiters=1)
    lease.release()
    assert other.answer()["token"] > lease.token


def test_a_killed_holder_frees_the_lock(world: Scene) -> None:
    alice, other = world.party(), world.process()
    ttl = LONG if world.world.notices_death else world.ttl(0.5)
    other.ask("acquire", name="x", ttl=ttl)
    (waits,) = world.queue_up("x", lambda: alice.lock("x").acquire.start())
    other.kill()
    waits.result().release()


@pytest.mark.needs("semaphores")
def test_killed_holders_give_back_all_permits(world: Scene) -> None:
    alice = world.party()
    others = [world.process() for _ in range(3)]
    ttl = LONG if world.world.notices_death else world.ttl(0.5)
    for other in others:
        other.ask("acquire", name="x", kind="semaphore", limit=3, ttl=ttl)
    assert alice.semaphore("x", limit=3).try_acquire() is None
    for other in others:
        other.kill()
    permits = [alice.semaphore("x", limit=3).acquire(timeout=A_MINUTE) for _ in range(3)]
    for permit in permits:
        permit.release()


def test_killed_waiters_do_not_stall_the_one_behind_them(world: Scene) -> None:
    alice, carol = world.party(), world.party()
    ttl = LONG if world.world.notices_death else world.ttl(1.0)
    lease = alice.lock("x").acquire()
    crowd = [world.process() for _ in range(3)]
    for other in crowd:
        other.send("acquire", name="x", ttl=ttl)
    world.wait_for_line("x", waiters=len(crowd))
    # A server that has not noticed yet that a waiter is dead gives it the turn; carol finds out at her next renewal.
    (waits,) = world.queue_up("x", lambda: carol.lock("x", ttl=15).acquire.start())
    for other in crowd:
        other.kill()
    lease.release()
    waits.result().release()


def test_a_frozen_holder_wakes_up_knowing_that_it_lost(world: Scene, tmp_path: Path) -> None:
    """SIGSTOP for three ttls: the next one gets the lock; after SIGCONT no look that begins says valid, ever."""
    alice, other = world.party(), world.process()
    ttl = world.ttl(0.4)
    other.ask("acquire", name="x", ttl=ttl)
    other.send("watch", seconds=0.5, began=str(tmp_path / "began"))
    world.wait_for((tmp_path / "began").exists, what="its first look")
    other.stop()
    try:
        lease = alice.lock("x").acquire(timeout=A_MINUTE)
        time.sleep(2 * ttl)
    finally:
        other.go_on()
    seen = other.answer()
    assert seen["longest_gap"] > ttl
    assert seen["lies"] == 0
    assert seen["looks"] > 10
    assert other.ask("look_at") == {"valid": False, "lost": True, "remaining": 0.0}
    assert other.ask("release")["error"] == "LeaseLost"
    assert [held.id for held in world.line("x").claims] == [lease.id]
    assert lease.valid
    lease.release()


def test_a_frozen_waiter_does_not_hold_up_the_line(world: Scene) -> None:
    alice, carol, other = world.party(), world.party(), world.process()
    ttl = world.ttl(0.4)
    lease = alice.lock("x").acquire()
    other.send("acquire", name="x", ttl=ttl)
    world.wait_for_line("x", waiters=1)
    (waits,) = world.queue_up("x", lambda: carol.lock("x").acquire.start())
    other.stop()
    lease.release()
    granted = waits.result()
    other.go_on()
    # The frozen one has lost its place and nothing else: it stands again, and gets its turn.
    granted.release()
    answer = other.answer()
    assert "token" in answer, answer
    assert answer["token"] > granted.token
    assert other.ask("release") == {}


def test_no_update_is_lost_between_processes(world: Scene, tmp_path: Path) -> None:
    file = tmp_path / "count"
    file.write_text("0")
    others = [world.process() for _ in range(3)]
    for other in others:
        other.send("count_up", path=str(file), times=25, name="x")
    for other in others:
        assert other.answer() == {}
    assert file.read_text() == "75"


def test_a_store_that_was_full_of_the_dead_is_clean_after_a_while(world: Scene) -> None:
    ttl = world.ttl(0.4)
    for number in range(3):
        other = world.process()
        other.ask("acquire", name=f"x{number}", ttl=ttl)
        other.kill()
    world.wait_for(lambda: world.names() == [])
