"""A client with very many leases: what is due is done in time, though not every claim is looked at twice a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockline import BackendUnavailable
from lockline.core import agenda, keeper
from lockline.core.agenda import Agenda
from tests.calm import calm
from tests.contract.faults import Faults
from tests.contract.parties import ThreadParty
from tests.renewed import renewal_of


@pytest.fixture
def rounds(alice: ThreadParty, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often all claims of this client were gone through, which rests for a minute after each time: five are very many to it."""
    monkeypatch.setattr(agenda, "MANY", 4)
    monkeypatch.setattr(agenda, "REST_PER_CLAIM", 12.0)
    plan = alice.client.real._engine._keeper._agenda
    begin_round, count = plan.begin_round, 0

    def counted(now: float, claims: int) -> None:
        nonlocal count
        count += 1  # before it rests: whoever sees that it does has the last round in his count
        begin_round(now, claims)

    plan.begin_round = counted
    return lambda: count


@pytest.fixture
def leases(alice: ThreadParty, rounds: Callable[[], int]) -> Iterator[list[Any]]:
    """Five, of a client that has been through them and rests."""
    five = [alice.lock(f"x{number}", ttl=60).acquire() for number in range(5)]
    eventually(lambda: alice.client.real._engine._keeper._agenda.rests)
    yield five
    for lease in five:
        if lease.valid:
            lease.release()


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> None:
    until = calm() + seconds
    while not condition():
        assert calm() < until
        time.sleep(0.002)


def test_claims_that_are_not_due_are_left_alone(leases: list[Any], rounds: Callable[[], int]) -> None:
    seen = rounds()
    time.sleep(1.2)
    assert rounds() == seen, "two ticks went by"
    assert all(lease.valid for lease in leases)


def test_a_lease_that_comes_between_two_rounds_is_renewed_when_it_is_due(
    alice: ThreadParty, leases: list[Any], rounds: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = alice.client.real._engine
    now = engine.runtime.now
    leases.append(alice.lock("short", ttl=30).acquire())
    seen, renewed = rounds(), renewal_of(leases[-1])
    monkeypatch.setattr(engine.runtime, "now", lambda: now() + 11)
    eventually(renewed)
    assert all(lease.valid for lease in leases)
    # One for its renewal, and one that may have been under way: it rests for a minute, of which eleven seconds are over.
    assert 1 <= rounds() - seen <= 3


def test_all_of_them_are_renewed_when_they_are_due(
    alice: ThreadParty, leases: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = alice.client.real._engine
    now = engine.runtime.now
    monkeypatch.setattr(engine.runtime, "now", lambda: now() + 30)
    eventually(lambda: all(lease.remaining() > 40 for lease in leases))


def test_one_that_is_evicted_between_two_rounds_hears_of_it(alice: ThreadParty, leases: list[Any]) -> None:
    alice.client.evict("x3")
    eventually(lambda: not leases[3].valid)
    assert sum(lease.valid for lease in leases) == 4


def test_one_that_is_evicted_while_as_many_are_asked_for_as_may_be_hears_of_it(
    alice: ThreadParty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "AT_ONCE", 1)
    engine = alice.client.real._engine
    busy, lease = alice.lock("busy", ttl=60).acquire(), alice.lock("x", ttl=60).acquire()
    faults = Faults(alice)
    answered = faults.hold("renew", times=1)
    engine._hints.heard(busy.id)
    eventually(lambda: faults.count("renew") == 1)
    rounds: list[object] = []
    go_through_all = engine._keeper._go_through_all

    async def noted(now: float) -> None:
        await go_through_all(now)
        rounds.append(now)

    engine._keeper._go_through_all = noted
    alice.client.evict("x")
    eventually(lambda: rounds)
    answered.set()
    eventually(lambda: not lease.valid)
    busy.release()


def test_what_is_noted_between_two_rounds_is_due_then() -> None:
    plan = Agenda()
    assert plan.round_is_due(100.0), "the first time everything is looked at"
    plan.begin_round(100.0, 100_000)
    plan.note(101.0)
    plan.end_round(130.0)
    assert not plan.round_is_due(100.9)
    assert plan.round_is_due(101.0)
    plan.begin_round(101.0, 100_000)
    plan.end_round(130.0)
    assert not plan.round_is_due(102.9)
    assert plan.round_is_due(103.1), "2 s for 100,000: there may be one that nobody answers for"


def test_few_claims_are_all_looked_at_each_time() -> None:
    plan = Agenda()
    plan.begin_round(100.0, agenda.MANY)
    plan.end_round(130.0)
    assert plan.round_is_due(100.0)
    assert plan.next(100.5) == 100.5
    assert plan.next(200.0) == 130.0


def renewals(alice: ThreadParty, monkeypatch: pytest.MonkeyPatch, answers: Callable[[int], bool]) -> list[int]:
    """Have two travel together at most, and half a minute pass; how many claims each call is for, of those that are answered or not."""
    monkeypatch.setattr(keeper, "TOGETHER", 2)
    engine = alice.client.real._engine
    renew, sizes = engine.backend.renew, list[int]()

    async def counted(claims: list[object], until: float) -> object:
        sizes.append(len(claims))
        if not answers(len(sizes)):
            raise BackendUnavailable("away")
        return await renew(claims, until)

    monkeypatch.setattr(engine.backend, "renew", counted)
    now = engine.runtime.now
    monkeypatch.setattr(engine.runtime, "now", lambda: now() + 30)
    return sizes


def test_the_first_of_very_many_does_not_wait_for_the_answer_to_the_last(
    alice: ThreadParty, leases: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = renewals(alice, monkeypatch, lambda nth: True)
    eventually(lambda: all(lease.remaining() > 40 for lease in leases))
    assert sizes == [2, 2, 1]


def test_a_store_that_is_silent_is_waited_for_once_and_all_are_renewed_when_it_is_back(
    alice: ThreadParty, leases: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = renewals(alice, monkeypatch, lambda nth: nth > 1)
    eventually(lambda: all(lease.remaining() > 40 for lease in leases))
    assert sizes == [2, 2, 2, 1], "one call that failed, and then all five"
