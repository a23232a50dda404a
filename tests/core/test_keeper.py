"""The keeper: one background renewer, in batches, that neither gives up nor holds on too long."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import lockline
from lockline import BackendUnavailable, LeaseLost, aio
from lockline.backends import memory
from lockline.core import keeper as keeper_module
from lockline.core import worker
from lockline.core.claim import Claim
from lockline.runtime import blocking
from lockline.runtime.blocking import run
from tests.calm import calm
from tests.contract.faults import Faults
from tests.contract.parties import ThreadParty


def eventually(condition: Callable[[], object], seconds: float = 5.0) -> None:
    until = calm() + seconds
    while not condition():
        assert calm() < until
        time.sleep(0.002)


def keepers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "lockline-keeper"}


def test_a_claim_is_renewed_three_times_in_a_ttl(alice: ThreadParty) -> None:
    faults = Faults(alice)
    began, calmly = time.monotonic(), calm()
    lease = alice.lock("x", ttl=1.2).acquire()
    eventually(lambda: faults.count("renew") >= 3)
    # The third when the ttl is over, neither long before nor long after.
    assert time.monotonic() - began > 1.2 * 0.85
    assert calm() - calmly < 1.2 * 1.3
    lease.release()


def test_claims_that_are_due_together_travel_together(alice: ThreadParty, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    engine = alice.client.real._engine
    backend, now = engine.backend, engine.runtime.now
    renew = backend.renew

    async def counted(claims: list[object], until: float) -> object:
        sizes.append(len(claims))
        return await renew(claims, until)

    backend.renew = counted
    leases = [alice.lock(f"x{number}", ttl=60).acquire() for number in range(50)]
    assert not sizes
    monkeypatch.setattr(engine.runtime, "now", lambda: now() + 30)
    eventually(lambda: sizes)
    assert sizes == [50]
    assert all(lease.valid for lease in leases)
    for lease in leases:
        lease.release()


def test_a_failed_renewal_is_tried_again_long_before_the_next_is_due(alice: ThreadParty) -> None:
    faults = Faults(alice)
    lease = alice.lock("x", ttl=3).acquire()
    faults.fail("renew", times=2)
    eventually(lambda: faults.count("renew") >= 1)
    began = calm()
    eventually(lambda: faults.count("renew") >= 3)
    assert calm() - began < 0.9
    assert lease.valid
    lease.release()


def test_the_time_a_renewal_takes_is_not_trusted(alice: ThreadParty) -> None:
    lease = alice.lock("x", ttl=1.8).acquire()
    engine = alice.client.real._engine
    renew = engine.backend.renew
    sent: list[float] = []

    async def slow(claims: list[object], until: float) -> object:
        sent.append(engine.runtime.now())
        fates = await renew(claims, until)
        await engine.runtime.sleep(0.2)
        return fates

    live = lease.real._live
    before = live.deadline
    engine.backend.renew = slow
    eventually(lambda: live.deadline != before)
    assert live.deadline <= sent[0] + 1.8
    lease.release()


def test_a_waiter_whose_place_vanished_stands_again_at_the_next_renewal(alice: ThreadParty) -> None:
    """Its session was revoked, or the store forgot it: it does not sit there until its ttl would be over."""
    other = ThreadParty("other")
    other.client = alice.client.given_to(other)
    held = alice.lock("x", ttl=30).acquire()
    waits = other.lock("x", ttl=1.8).acquire.start(timeout=10)
    eventually(lambda: len(alice.client.inspect("x").waiters) == 1)
    place = alice.client.inspect("x").waiters[0].id
    memory._rooms[alice.client.url].leave(Claim("x", place, "", "lock", 1, 1, 1.8, 0.0, ""))
    began = calm()
    eventually(lambda: alice.client.inspect("x").waiters)
    assert calm() - began < 1.2
    assert alice.client.inspect("x").waiters[0].id != place
    held.release()
    waits.result(2).release()
    other.end()


def test_a_batch_that_hangs_does_not_hide_the_loss_of_another_lease(alice: ThreadParty) -> None:
    faults = Faults(alice)
    told: list[float] = []
    short = alice.lock("short", ttl=1.2, renew=False).acquire()
    short.on_lost(lambda: told.append(calm()))
    # Its renewal is due before the other one's end, and given up after it.
    long = alice.lock("long", ttl=3).acquire()
    began = calm()
    faults.hang("renew")
    eventually(lambda: told)
    assert told[0] - began < 1.2 + 0.15
    assert long.valid
    faults.heal()
    eventually(lambda: faults.count("renew") > 2)
    assert long.valid
    long.release()
    with pytest.raises(LeaseLost):
        short.release()


def test_a_renewal_that_hangs_for_ever_cannot_keep_a_lease_valid(alice: ThreadParty) -> None:
    """Even a backend that breaks its word and ignores the deadline: the lease ends by its own clock."""
    faults = Faults(alice)
    faults.delay("renew", 3.0)
    lease = alice.lock("x", ttl=0.3).acquire()
    assert lease.lost.wait(2.5), "the renewal takes three seconds"
    assert not lease.valid
    with pytest.raises(LeaseLost):
        lease.check()


def test_nothing_that_the_store_does_delays_the_word_of_a_loss(alice: ThreadParty) -> None:
    """Debts that nobody takes, renewals that hang beyond their deadline: the holder hears by its own clock."""
    faults = Faults(alice)
    told: list[float] = []
    lease = alice.lock("held", ttl=1.2).acquire()
    faults.fail("enter", after=True, times=8)
    faults.fail("leave", times=8)
    for number in range(8):
        with pytest.raises(BackendUnavailable):
            alice.lock(f"owed-{number}", ttl=30).try_acquire()
    faults.delay("leave", 1.0, times=None)
    faults.delay("renew", 3.0, times=None)
    left, began = lease.real._live.deadline - lease.real._live.runtime.now(), calm()
    lease.on_lost(lambda: told.append(calm()))
    eventually(lambda: told)
    assert told[0] - began < left + 0.15


def test_a_lease_that_comes_while_a_renewal_hangs_is_renewed(alice: ThreadParty) -> None:
    faults = Faults(alice)
    faults.delay("renew", 2.0)
    first = alice.lock("first", ttl=1.2).acquire()
    eventually(lambda: faults.count("renew") == 1)
    second = alice.lock("second", ttl=1.3).acquire()
    time.sleep(1.5)
    assert second.valid
    assert not first.valid
    second.release()
    with pytest.raises(LeaseLost):
        first.release()


def test_close_does_not_wait_for_every_debt(alice: ThreadParty) -> None:
    faults = Faults(alice)
    faults.fail("enter", after=True, times=20)
    faults.fail("leave", times=20)
    for number in range(20):
        with pytest.raises(BackendUnavailable):
            alice.lock(f"owed-{number}", ttl=30).try_acquire()
    faults.hang("leave")
    began = calm()
    alice.client.close()
    assert calm() - began < 4


def test_a_claim_that_waits_is_renewed_too(alice: ThreadParty) -> None:
    other = ThreadParty("other")
    other.client = alice.client.given_to(other)
    held = alice.lock("x", ttl=30).acquire()
    faults = Faults(alice)
    waits = other.lock("x", ttl=1.2).acquire.start()
    # The third is due when its ttl is over.
    eventually(lambda: faults.count("renew") >= 4)
    assert not waits.done
    assert faults.count("enter") == 1
    held.release()
    waits.result(2).release()
    other.end()


def test_what_could_not_be_withdrawn_is_withdrawn_later_and_then_forgotten(alice: ThreadParty) -> None:
    faults = Faults(alice)
    faults.fail("enter", after=True)
    faults.fail("leave", times=3)
    with pytest.raises(BackendUnavailable):
        alice.lock("x", ttl=30).try_acquire()
    keeper = alice.client.real._engine._keeper
    assert keeper.removals
    eventually(lambda: not keeper.removals)
    assert not alice.client.inspect("x").claims


def test_a_debt_ends_with_the_claims_ttl(alice: ThreadParty) -> None:
    faults = Faults(alice)
    faults.fail("enter", after=True)
    faults.fail("leave", times=None)
    with pytest.raises(BackendUnavailable):
        alice.lock("x", ttl=0.3).try_acquire()
    eventually(lambda: not alice.client.real._engine._keeper.removals)


def test_an_idle_keeper_goes_home_and_comes_back(alice: ThreadParty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "LINGER", 0.5)
    before = keepers()
    alice.lock("x").acquire().release()
    (mine,) = keepers() - before
    eventually(lambda: mine not in keepers())
    faults = Faults(alice)
    lease = alice.lock("x", ttl=1.2).acquire()
    eventually(lambda: faults.count("renew") >= 3)
    assert lease.valid
    lease.release()


def test_a_claim_that_comes_while_the_keeper_retires_is_renewed(
    alice: ThreadParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is added just after the keeper has looked for the last time and before it is gone."""
    monkeypatch.setattr(keeper_module, "LINGER", 0.05)
    keeper = alice.client.real._engine._keeper
    alice.lock("x").acquire().release()
    taken: list[object] = []

    class Late:
        def __init__(self, signal: object) -> None:
            self._signal = signal

        def __getattr__(self, name: str) -> object:
            return getattr(self._signal, name)

        def is_set(self) -> bool:
            answer = self._signal.is_set()  # type: ignore[attr-defined]
            if not taken:
                taken.append(alice.lock("y", ttl=60).acquire.start())
                time.sleep(0.1)
            return bool(answer)

    keeper._worker._signal = Late(keeper._worker._signal)
    eventually(lambda: taken)
    lease = taken[0].result(2)  # type: ignore[attr-defined]
    running = keeper._worker._alone(lambda: keeper._worker._running)  # it has retired, or not
    assert running is not None, "nobody would renew the claim"
    assert running.alive()
    lease.release()


def test_one_client_has_one_keeper(alice: ThreadParty) -> None:
    before = keepers()
    leases = [alice.lock(f"x{number}").acquire() for number in range(100)]
    assert len(keepers() - before) <= 1
    for lease in leases:
        lease.release()


def test_close_ends_the_keeper(alice: ThreadParty) -> None:
    before = keepers()
    client = lockline.connect("memory:keeper-close")
    lease = client.lock("x").acquire()
    assert len(keepers() - before) == 1
    client.close()
    assert not keepers() - before
    assert not lease.valid


def test_a_client_that_is_closed_by_its_own_callback_does_not_wait_for_itself() -> None:
    client = lockline.connect(f"memory:keeper-{time.monotonic_ns()}")
    lease = client.lock("x", ttl=0.2, renew=False).acquire()
    closed = threading.Event()

    def stop() -> None:
        client.close()
        closed.set()

    lease.on_lost(stop)
    assert closed.wait(20)


def test_the_end_of_a_loop_leaves_no_keeper_that_complains() -> None:
    """A program that forgets to close: `asyncio.run` cancels the keeper, and nothing is said of it."""

    async def main() -> None:
        client = aio.connect("memory:keeper-forgotten")
        lease = await client.lock("x").acquire()
        await lease.release()

    asyncio.run(main())


def test_a_slow_callback_costs_no_other_lease_its_renewal(alice: ThreadParty) -> None:
    held = alice.lock("held", ttl=1.5).acquire()
    victims = [alice.lock(f"victim-{number}", ttl=30).acquire() for number in range(3)]
    stuck, told = threading.Event(), []
    victims[0].on_lost(lambda: stuck.wait())
    victims[1].on_lost(lambda: told.append("another"))
    for victim in victims:
        alice.client.evict(victim.name)
    eventually(lambda: told)
    ends = time.monotonic() + 1.2 * held.ttl
    while time.monotonic() < ends:
        assert held.valid
        time.sleep(0.01)
    stuck.set()
    held.release()


def test_a_slow_callback_does_not_keep_close(alice: ThreadParty) -> None:
    stuck = threading.Event()
    lease = alice.lock("x", ttl=30).acquire()
    lease.on_lost(lambda: stuck.wait())
    alice.client.close.start().result(5)
    assert not lease.valid
    stuck.set()


def test_a_client_that_was_dropped_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    for number in range(20):
        lockline.connect(f"memory:dropped-{number}").lock("x").acquire().release()
    eventually(lambda: not set(threading.enumerate()) - before, worker.LINGER * 0.8)


def test_a_lock_keeps_the_keeper_of_a_client_that_was_dropped() -> None:
    lease = lockline.connect("memory:dropped-but-held").lock("x", ttl=1.3).acquire()
    time.sleep(1.5)
    assert lease.valid
    lease.release()


def test_whoever_cancels_every_task_but_his_own_does_not_lose_his_lease() -> None:
    """Many a program ends like that; the body goes on under its lease, and hears of a loss as before."""

    async def evicted_body(client: aio.Client, other: aio.Client) -> None:
        async with client.lock("x", ttl=30):
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await other.evict("x")
            await asyncio.sleep(10)

    async def story() -> None:
        client = aio.connect("memory:cancel-all")
        other = aio.connect("memory:cancel-all")
        async with client.lock("x", ttl=1.3) as lease:
            for _ in range(3):
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.sleep(0.5)
                assert lease.valid
        with pytest.raises(LeaseLost):
            await evicted_body(client, other)
        await client.close()
        await other.close()

    asyncio.run(story())


def test_a_loop_that_ends_with_a_lease_in_hand_ends_without_a_word(recwarn: pytest.WarningsRecorder) -> None:
    async def story() -> aio.Lease:
        client = aio.connect("memory:loop-ends")
        return await client.lock("x", ttl=30).acquire()

    lease = asyncio.run(story())
    assert not [warning for warning in recwarn if "destroyed" in str(warning.message)]
    lease._open = False


@pytest.mark.slow
@pytest.mark.parametrize("where", ["thread", "launch"])
def test_a_lease_is_kept_while_no_thread_can_be_started_and_after_it(
    alice: ThreadParty, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A process at its limit of threads: the first of the two that a renewal takes is refused, or the second."""
    lease = alice.lock("x", ttl=1.3).acquire()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        if where == "thread":
            full.setattr(threading.Thread, "start", refuse)
        else:
            full.setattr(blocking, "start_new_thread", refuse)
        time.sleep(1.5)
        assert lease.valid
    time.sleep(1.5)
    assert lease.valid
    lease.release()


def test_no_lease_is_given_out_that_no_thread_could_renew(alice: ThreadParty, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="no thread for lockline-keeper"):
            alice.lock("x", ttl=30).acquire()
    alice.lock("x", ttl=30).acquire().release()


def test_an_early_hint_outlasts_a_round_that_began_before_its_claim_came(alice: ThreadParty) -> None:
    keeper = alice.client.real._engine._keeper

    class Books(dict[str, Any]):
        """Just after somebody has looked at all of them, one more comes, and its hint with it."""

        def __iter__(self) -> Iterator[str]:
            yield from list(self.keys())
            self["late"] = None
            keeper.hints.early.add("late")

        def __contains__(self, claim_id: object) -> bool:
            self["late"] = None
            keeper.hints.early.add("late")
            return claim_id in self.keys()

    keeper.hints.early.add("gone")
    keeper.books = Books()
    run(keeper._look_round())
    assert keeper.hints.early == {"late"}
    keeper.books = {}
