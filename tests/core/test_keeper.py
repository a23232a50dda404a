"""The keeper: one background renewer, in batches, that neither gives up nor holds on too long."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import lockline
from lockline import BackendUnavailable, LeaseLost, aio
from lockline.backends import memory
from lockline.core import keeper as keeper_module
from lockline.core.claim import Claim, Unanswered
from lockline.runtime import blocking
from lockline.runtime import clock as clock_module
from lockline.runtime.blocking import run
from lockline.runtime.clock import validity
from tests.calm import calm
from tests.contract.faults import Faults
from tests.contract.parties import ThreadParty
from tests.renewed import renewal_of, wait_for_renewal


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    until = calm() + seconds
    while not condition():
        assert calm() < until
        time.sleep(0.002)


def keepers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "lockline-keeper"}


TTL = 600.0
"""Of leases on a clock that the test moves: a renewal is due after 200 s, and nothing ends by the time that a busy machine takes."""


@pytest.fixture
def clock(alice: ThreadParty, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the client's time forward by so many seconds, and that of whoever sleeps; its store's time stays."""
    passed, now = [0.0], clock_module.now

    def moved() -> float:
        return now() + passed[0]

    monkeypatch.setattr(clock_module, "now", moved)
    monkeypatch.setattr(alice.client.real._engine.runtime, "now", moved)

    def move(seconds: float) -> None:
        passed[0] += seconds

    return move


def test_a_claim_is_renewed_three_times_in_a_ttl(alice: ThreadParty, clock: Callable[[float], None]) -> None:
    faults = Faults(alice)
    lease = alice.lock("x", ttl=TTL).acquire()
    live = lease.real._live
    for renewals in range(1, 4):
        clock(TTL / 3 - 10)
        assert live.due > live.runtime.now(), "not long before"
        assert faults.count("renew") == renewals - 1
        clock(20)
        eventually(lambda: live.due > live.runtime.now() and faults.count("renew") == renewals)  # noqa: B023 - waited for here
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


def test_a_failed_renewal_is_tried_again_long_before_the_next_is_due(
    alice: ThreadParty, clock: Callable[[float], None]
) -> None:
    faults = Faults(alice)
    lease = alice.lock("x", ttl=TTL).acquire()
    faults.fail("renew", times=2)
    clock(TTL / 2)
    # The next one is due minutes later, and nobody moves the clock.
    eventually(lambda: faults.count("renew") >= 3)
    assert lease.valid
    lease.release()


def test_the_time_a_renewal_takes_is_not_trusted(alice: ThreadParty, clock: Callable[[float], None]) -> None:
    lease = alice.lock("x", ttl=TTL).acquire()
    engine = alice.client.real._engine
    renew = engine.backend.renew
    sent: list[float] = []

    async def slow(claims: list[object], until: float) -> object:
        sent.append(engine.runtime.now())
        fates = await renew(claims, until)
        clock(10)
        return fates

    live = lease.real._live
    before = live.deadline
    engine.backend.renew = slow
    clock(TTL / 2)
    eventually(lambda: live.deadline != before)
    assert live.deadline <= sent[0] + validity(TTL)
    lease.release()


def test_a_waiter_whose_place_vanished_stands_again_at_the_next_renewal(
    alice: ThreadParty, clock: Callable[[float], None]
) -> None:
    """Its session was revoked, or the store forgot it: it does not sit there until its ttl would be over."""
    other = ThreadParty("other")
    other.client = alice.client.given_to(other)
    held = alice.lock("x", ttl=TTL).acquire()
    waits = other.lock("x", ttl=TTL).acquire.start()
    eventually(lambda: len(alice.client.inspect("x").waiters) == 1)
    place = alice.client.inspect("x").waiters[0].id
    memory._rooms[alice.client.url].leave(Claim("x", place, "", "lock", 1, 1, TTL, 0.0, ""))
    clock(TTL / 2)
    eventually(lambda: alice.client.inspect("x").waiters)
    assert alice.client.inspect("x").waiters[0].id != place
    held.release()
    waits.result(60).release()
    other.end()


def test_a_batch_that_hangs_does_not_hide_the_loss_of_another_lease(
    alice: ThreadParty, clock: Callable[[float], None]
) -> None:
    faults = Faults(alice)
    told: list[bool] = []
    short = alice.lock("short", ttl=TTL / 2, renew=False).acquire()
    short.on_lost(lambda: told.append(True))
    long = alice.lock("long", ttl=TTL).acquire()
    answer = faults.hold("renew")
    clock(0.4 * TTL)
    eventually(lambda: faults.count("renew") == 1)
    clock(0.2 * TTL)
    eventually(lambda: told)
    assert faults.count("renew") == 1, "it still hangs"
    assert long.valid
    answer.set()
    eventually(lambda: long.remaining() > TTL / 2)
    long.release()
    with pytest.raises(LeaseLost):
        short.release()


def test_a_renewal_that_hangs_for_ever_cannot_keep_a_lease_valid(alice: ThreadParty) -> None:
    """Even a backend that breaks its word and ignores the deadline: the lease ends by its own clock."""
    faults = Faults(alice)
    answer = faults.hold("renew")
    lease = alice.lock("x", ttl=0.5).acquire()
    assert lease.lost.wait(60)
    assert not lease.valid
    with pytest.raises(LeaseLost):
        lease.check()
    answer.set()


def test_nothing_that_the_store_does_delays_the_word_of_a_loss(
    alice: ThreadParty, clock: Callable[[float], None]
) -> None:
    """Debts that nobody takes, renewals that hang beyond their deadline: the holder hears by its own clock."""
    faults = Faults(alice)
    told: list[bool] = []
    lease = alice.lock("held", ttl=TTL).acquire()
    faults.fail("enter", after=True, times=8)
    faults.fail("leave", times=8)
    for number in range(8):
        with pytest.raises(BackendUnavailable):
            alice.lock(f"owed-{number}", ttl=TTL).try_acquire()
    answers = [faults.hold("leave"), faults.hold("renew")]
    lease.on_lost(lambda: told.append(True))
    clock(0.4 * TTL)
    eventually(lambda: faults.count("renew"))
    clock(0.6 * TTL)
    eventually(lambda: told)
    for answer in answers:
        answer.set()


def test_a_lease_that_comes_while_a_renewal_hangs_is_renewed(
    alice: ThreadParty, clock: Callable[[float], None]
) -> None:
    faults = Faults(alice)
    answer = faults.hold("renew", times=1)
    first = alice.lock("first", ttl=TTL).acquire()
    clock(0.4 * TTL)
    eventually(lambda: faults.count("renew") == 1)
    second = alice.lock("second", ttl=TTL).acquire()
    renewed = renewal_of(second)
    clock(0.4 * TTL)
    eventually(renewed)
    second.release()
    clock(0.4 * TTL)
    assert not first.valid, "nobody has answered"
    answer.set()
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
    tried = faults.count("leave")
    alice.client.close()
    # Each of them takes a second: not one after the other, to the last.
    assert faults.count("leave") - tried < 10


def test_a_claim_that_waits_is_renewed_too(alice: ThreadParty, clock: Callable[[float], None]) -> None:
    other = ThreadParty("other")
    other.client = alice.client.given_to(other)
    held = alice.lock("x", ttl=3600).acquire()
    faults = Faults(alice)
    waits = other.lock("x", ttl=TTL).acquire.start()
    eventually(lambda: alice.client.inspect("x").waiters)
    # The third is due when its ttl is over.
    for renewals in range(1, 4):
        clock(TTL / 3 + 1)
        eventually(lambda: faults.count("renew") >= renewals)  # noqa: B023 - waited for here
    clock(TTL / 3)
    eventually(lambda: faults.count("renew") >= 4)
    assert not waits.done
    assert faults.count("enter") == 1
    held.release()
    waits.result(60).release()
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


def test_an_idle_keeper_goes_home_and_comes_back(
    alice: ThreadParty, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "LINGER", 0.5)
    before = keepers()
    with alice.lock("x"):
        (mine,) = keepers() - before
    eventually(lambda: mine not in keepers())
    lease = alice.lock("x", ttl=TTL).acquire()
    renewed = renewal_of(lease)
    clock(TTL / 2)
    eventually(renewed)
    assert lease.valid
    lease.release()


def test_a_claim_that_comes_while_the_keeper_retires_is_renewed(
    alice: ThreadParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is added just after the keeper has looked for the last time and before it is gone."""
    monkeypatch.setattr(keeper_module, "LINGER", 0.05)
    keeper = alice.client.real._engine._keeper
    held = alice.lock("x").acquire()
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
    held.release()  # only now may it go
    eventually(lambda: taken)
    lease = taken[0].result(60)  # type: ignore[attr-defined]
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
    assert closed.wait(60)


def test_the_end_of_a_loop_leaves_no_keeper_that_complains() -> None:
    """A program that forgets to close: `asyncio.run` cancels the keeper, and nothing is said of it."""

    async def main() -> None:
        client = aio.connect("memory:keeper-forgotten")
        lease = await client.lock("x").acquire()
        await lease.release()

    asyncio.run(main())


def test_a_slow_callback_costs_no_other_lease_its_renewal(alice: ThreadParty, clock: Callable[[float], None]) -> None:
    held = alice.lock("held", ttl=TTL).acquire()
    victims = [alice.lock(f"victim-{number}", ttl=TTL).acquire() for number in range(3)]
    stuck, told = threading.Event(), []
    victims[0].on_lost(lambda: stuck.wait())
    victims[1].on_lost(lambda: told.append("another"))
    for victim in victims:
        alice.client.evict(victim.name)
    eventually(lambda: told)
    renewed = renewal_of(held)
    clock(TTL / 2)
    eventually(renewed)
    assert held.valid
    stuck.set()
    held.release()


def test_a_slow_callback_does_not_keep_close(alice: ThreadParty) -> None:
    stuck = threading.Event()
    lease = alice.lock("x", ttl=30).acquire()
    lease.on_lost(lambda: stuck.wait())
    alice.client.close.start().result(60)
    assert not lease.valid
    stuck.set()


def test_a_client_that_was_dropped_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "LINGER", 3600.0)
    before = set(threading.enumerate())
    for number in range(20):
        lockline.connect(f"memory:dropped-{number}").lock("x").acquire().release()
    gc.collect()
    eventually(lambda: not set(threading.enumerate()) - before)


def test_a_lock_keeps_the_keeper_of_a_client_that_was_dropped() -> None:
    lease = lockline.connect("memory:dropped-but-held").lock("x", ttl=TTL).acquire()
    gc.collect()
    wait_for_renewal(lease)
    lease.release()


def test_whoever_cancels_every_task_but_his_own_does_not_lose_his_lease() -> None:
    """Many a program ends like that; the body goes on under its lease, and hears of a loss as before."""

    async def evicted_body(client: aio.Client, other: aio.Client) -> None:
        async with client.lock("x", ttl=30):
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await other.evict("x")
            await asyncio.sleep(600)

    async def story() -> None:
        client = aio.connect("memory:cancel-all")
        other = aio.connect("memory:cancel-all")
        async with client.lock("x", ttl=TTL) as lease:
            for _ in range(2):
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.to_thread(wait_for_renewal, lease)
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


@pytest.mark.parametrize("where", ["thread", "launch"])
def test_a_lease_is_kept_while_no_thread_can_be_started_and_after_it(
    alice: ThreadParty, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """A process at its limit of threads: the first of the two that a renewal takes is refused, or the second."""
    lease = alice.lock("x", ttl=TTL).acquire()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        if where == "thread":
            full.setattr(threading.Thread, "start", refuse)
        else:
            full.setattr(blocking, "start_new_thread", refuse)
        renewed = renewal_of(lease)
        clock(TTL / 2)
        eventually(renewed)
    renewed = renewal_of(lease)
    clock(TTL / 2)
    eventually(renewed)
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


def answer_nothing(party: ThreadParty) -> list[int]:
    """Let the store leave every renewal unanswered, without an error; each one adds how many claims it was for."""
    asked: list[int] = []

    async def renew(claims: Sequence[Claim], until: float) -> list[Unanswered]:
        asked.append(len(claims))
        return [Unanswered(BackendUnavailable("too few servers answered"))] * len(claims)

    party.client.real._engine.backend.renew = renew
    return asked


def test_a_renewal_that_was_left_unanswered_is_none(alice: ThreadParty, clock: Callable[[float], None]) -> None:
    asked = answer_nothing(alice)
    lease = alice.lock("x", ttl=600).acquire()
    before = lease.real._live.deadline
    clock(300)  # the next renewal is due since a hundred seconds
    live = lease.real._live
    eventually(lambda: live.silence is not None or live.deadline != before, 60)
    assert asked
    assert live.deadline == before
    assert lease.valid, "no answer is not loss before the deadline"
    clock(300)
    assert not lease.valid
    with pytest.raises(LeaseLost, match="too few servers answered"):
        lease.check()


def test_an_extend_that_was_left_unanswered_is_an_error_and_lengthens_nothing(alice: ThreadParty) -> None:
    lease = alice.lock("x", ttl=600, renew=False).acquire()
    before = lease.real._live.deadline
    answer_nothing(alice)
    with pytest.raises(BackendUnavailable, match="too few servers answered"):
        lease.extend(3600)
    assert lease.real._live.deadline == before
    assert lease.valid
    lease.release()


def test_a_claim_that_its_client_trusts_no_longer_is_removed_from_the_store(alice: ThreadParty) -> None:
    """Long before the store's own time for it is over."""
    lease = alice.lock("x", ttl=3600, max_hold=0.05).acquire()
    eventually(lambda: not alice.client.inspect("x").claims, 60)
    assert not lease.valid
