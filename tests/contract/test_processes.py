"""Other processes take part, are frozen, and are killed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ..calm import calm
from .scene import Scene

pytestmark = pytest.mark.processes


def test_two_processes_exclude_each_other(world: Scene) -> None:
    alice, other = world.party(), world.process()
    token = other.ask("acquire", name="x", ttl=10)["token"]
    assert alice.lock("x").try_acquire() is None
    (waits,) = world.queue_up("x", lambda: alice.lock("x").acquire.start())
    assert other.ask("release") == {}
    lease = waits.result(2)
    assert lease.token > token
    assert other.ask("try_acquire", name="x")["token"] is None
    lease.release()


def test_a_hand_over_to_another_process_is_pushed(world: Scene) -> None:
    alice, other = world.party(), world.process()
    if not alice.client.guarantees.push:
        pytest.skip(f"{world.world.name} does not promise a push")
    lease = alice.lock("x", ttl=60).acquire()
    other.send("acquire", name="x", ttl=60)
    world.wait_for_line("x", waiters=1)
    began = calm()
    lease.release()
    assert other.answer()["token"] > lease.token
    assert calm() - began < 0.4 * world.world.patience


def test_a_killed_holder_frees_the_lock(world: Scene) -> None:
    alice, other = world.party(), world.process()
    ttl = 30.0 if world.world.notices_death else world.ttl(0.5)
    other.ask("acquire", name="x", ttl=ttl)
    (waits,) = world.queue_up("x", lambda: alice.lock("x").acquire.start())
    other.kill()
    began = calm()
    waits.result((1.0 if world.world.notices_death else ttl + 1) * world.world.patience).release()
    assert calm() - began < (1.0 if world.world.notices_death else ttl + 1) * world.world.patience


def test_killed_holders_give_back_all_permits(world: Scene) -> None:
    alice = world.party()
    alice._offered("semaphore")
    others = [world.process() for _ in range(3)]
    ttl = 30.0 if world.world.notices_death else world.ttl(0.5)
    for other in others:
        other.ask("acquire", name="x", kind="semaphore", limit=3, ttl=ttl)
    assert alice.semaphore("x", limit=3).try_acquire() is None
    for other in others:
        other.kill()
    permits = [alice.semaphore("x", limit=3).acquire(timeout=20) for _ in range(3)]
    for permit in permits:
        permit.release()


def test_killed_waiters_do_not_stall_the_one_behind_them(world: Scene) -> None:
    alice, carol = world.party(), world.party()
    ttl = world.ttl(1.0)
    lease = alice.lock("x").acquire()
    crowd = [world.process() for _ in range(3)]
    for other in crowd:
        other.send("acquire", name="x", ttl=ttl)
    world.wait_for_line("x", waiters=len(crowd))
    (waits,) = world.queue_up("x", lambda: carol.lock("x").acquire.start())
    for other in crowd:
        other.kill()
    lease.release()
    waits.result((2.0 if world.world.notices_death else 1.5 * ttl + 1) * world.world.patience).release()


def test_a_frozen_holder_wakes_up_knowing_that_it_lost(world: Scene, tmp_path: Path) -> None:
    """SIGSTOP for three ttls: the next one gets the lock; after SIGCONT no look that begins says valid, ever."""
    alice, other = world.party(), world.process()
    ttl = world.ttl(0.4)
    other.ask("acquire", name="x", ttl=ttl)
    other.send("watch", seconds=0.5, began=str(tmp_path / "began"))
    world.wait_for((tmp_path / "began").exists, what="its first look")
    other.stop()
    try:
        lease = alice.lock("x", ttl=30).acquire(timeout=20)
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
    granted = waits.result(2 * ttl + 1)
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
        other.send("count_up", path=str(file), times=25, name="x", ttl=10)
    for other in others:
        assert other.answer() == {}
    assert file.read_text() == "75"


def test_a_store_that_was_full_of_the_dead_is_clean_after_a_while(world: Scene) -> None:
    ttl = world.ttl(0.4)
    for number in range(3):
        other = world.process()
        other.ask("acquire", name=f"x{number}", ttl=ttl)
        other.kill()
    world.wait_for(lambda: world.names() == [], 3 * ttl + 2)
