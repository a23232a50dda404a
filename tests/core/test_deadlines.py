"""What a holder may trust, second by second, on a clock that the test turns."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lockline.core.claim import Ceiling, Claim
from lockline.core.handle import Handle
from lockline.core.live import LiveClaim
from lockline.errors import LeaseDropped, LeaseLost, NotHeld
from lockline.runtime.blocking import BlockingRuntime
from lockline.runtime.clock import DRIFT, validity

from .nobody import NOBODY


class Clock(BlockingRuntime):
    """A runtime whose time stands still until it is moved."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0
        self.now = lambda: self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


def live(clock: Clock, ttl: float = 10.0, max_hold: float | None = None) -> LiveClaim:
    claim = Claim("x", "id-1", "me", "lock", 1, 1, ttl, 0.0, "")
    return LiveClaim(claim, clock, (None, claim.name), True, max_hold, NOBODY)


def holding(clock: Clock, ttl: float = 10.0, max_hold: float | None = None) -> LiveClaim:
    it = live(clock, ttl, max_hold)
    it.acknowledge(clock.now(), ttl)
    it.grant(7)
    return it


def test_validity_is_the_ttl_less_a_margin_for_drift() -> None:
    assert validity(10) == 10 * (1 - DRIFT)
    assert 0 < DRIFT < 0.1


def test_validity_counts_from_when_the_request_was_sent(clock: Clock) -> None:
    it = live(clock)
    sent = clock.now()
    clock.time += 4  # the reply takes four seconds
    it.acknowledge(sent, 10)
    it.grant(7)
    assert it.remaining() == pytest.approx(validity(10) - 4)


def test_a_reply_that_came_too_late_is_worth_nothing(clock: Clock) -> None:
    it = live(clock)
    sent = clock.now()
    clock.time += 9.95
    it.acknowledge(sent, 10)
    it.grant(7)
    assert it.remaining() == 0.0
    assert it.lost is not None


def test_it_runs_out_by_itself_to_the_moment(clock: Clock) -> None:
    it = holding(clock)
    clock.time += validity(10) - 0.001
    assert it.remaining() > 0
    clock.time += 0.001
    assert it.remaining() == 0.0
    assert it.lost is not None
    assert it.lost.reason == "expired"


def test_lost_stays_lost_even_if_the_clock_or_the_store_says_otherwise(clock: Clock) -> None:
    it = holding(clock)
    clock.time += 10
    assert it.remaining() == 0.0
    it.acknowledge(clock.now(), 10)
    clock.time -= 10
    assert it.remaining() == 0.0


def test_a_renewal_answered_after_the_deadline_is_loss_even_if_nobody_looked(clock: Clock) -> None:
    it = holding(clock)
    sent = clock.now() + 8
    clock.time += 11
    it.acknowledge(sent, 10)
    assert it.remaining() == 0.0
    assert it.lost is not None


def test_a_renewal_with_a_shorter_ttl_never_shortens(clock: Clock) -> None:
    it = holding(clock, ttl=60)
    it.acknowledge(clock.now(), 1)
    assert it.remaining() == pytest.approx(validity(60))


def test_an_older_reply_that_arrives_later_changes_nothing(clock: Clock) -> None:
    it = holding(clock)
    first = clock.now()
    clock.time += 3
    it.acknowledge(clock.now(), 10)
    it.acknowledge(first, 10)
    assert it.remaining() == pytest.approx(validity(10))


def test_max_hold_is_an_end_that_no_renewal_moves(clock: Clock) -> None:
    it = holding(clock, max_hold=12)
    for _ in range(3):
        clock.time += 3.5
        it.acknowledge(clock.now(), 10)
    assert it.remaining() == pytest.approx(1.5)
    clock.time += 1.6
    assert it.remaining() == 0.0


def test_max_hold_counts_from_the_grant_and_not_from_the_wait(clock: Clock) -> None:
    it = live(clock, max_hold=5)
    it.acknowledge(clock.now(), 10)
    clock.time += 4
    it.acknowledge(clock.now(), 10)
    it.grant(7)
    assert it.remaining() == pytest.approx(5)


def test_a_claim_that_waits_is_no_lease(clock: Clock) -> None:
    it = live(clock)
    it.acknowledge(clock.now(), 10)
    assert it.remaining() == 0.0
    assert it.lost is None


def test_a_handle_that_is_lost_says_why_and_when(clock: Clock) -> None:
    it = holding(clock)
    handle = Handle(it, writes=False)
    handle.check()
    it.lose("evicted")
    with pytest.raises(LeaseLost, match=r"'x' \(token 7\) was lost: evicted") as caught:
        handle.check()
    assert (caught.value.name, caught.value.token, caught.value.reason) == ("x", 7, "evicted")
    assert caught.value.when > 0
    assert not handle.valid


def test_a_released_claim_cannot_be_lost_any_more(clock: Clock) -> None:
    it = holding(clock)
    handle = Handle(it, writes=False)
    told: list[object] = []
    handle.on_lost(told.append)
    it.give_up()
    it.lose("evicted")
    clock.time += 100
    assert it.lost is None
    assert told == []
    with pytest.raises(NotHeld):
        handle.check()


def test_only_the_last_handle_that_goes_abandons_the_claim(clock: Clock) -> None:
    it = holding(clock)
    one, two = Handle(it, writes=False), Handle(it, writes=False)
    one._given = two._given = True
    del one
    assert not it.abandoned
    with pytest.warns(LeaseDropped, match="without release"):
        del two
    assert it.abandoned


def test_a_lost_or_released_lease_goes_without_a_warning(clock: Clock) -> None:
    for end in ("lost", "released"):
        it = holding(clock)
        handle = Handle(it, writes=False)
        if end == "lost":
            it.lose("evicted")
        else:
            it.give_up()
        del handle


def test_a_lease_is_worth_nothing_once_its_session_may_have_ended(clock: Clock) -> None:
    it = holding(clock, ttl=60)
    it.ceiling = Ceiling(clock.now() + 5)
    clock.time += 4.9
    assert it.remaining() > 0
    clock.time += 0.2
    assert it.remaining() == 0
    assert it.lost is not None


def test_time_that_the_machine_sleeps_counts() -> None:
    """The clock of a process of its own, in which a machine sleeps: CLOCK_BOOTTIME goes on and CLOCK_MONOTONIC stops."""
    program = """
import time

clock_gettime, slept = time.clock_gettime, 0.0
time.clock_gettime = lambda clock: clock_gettime(clock) + (slept if clock == time.CLOCK_BOOTTIME else 0.0)

import lockline

with lockline.connect("memory:") as client:
    lease = client.lock("x", ttl=3600).acquire()
    assert lease.valid
    slept = 3600.0
    assert not lease.valid
    assert lease.lost.is_set()
"""
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
