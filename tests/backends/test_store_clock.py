"""The time of a store that tells it in whole seconds: never surer of it than it can be, and narrower with each answer."""

from __future__ import annotations

import asyncio
from email.utils import formatdate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockline.backends.kept import KeptText, unpacked
from lockline.backends.keyed.clock import BELIEVED, AskedClock, Reading, SeenClock
from lockline.runtime.blocking import BlockingRuntime, run
from lockline.runtime.looping import LoopRuntime

AT = 1_800_000_000.0


def date(moment: float) -> str:
    return formatdate(moment, usegmt=True)


delays = st.floats(0, 0.5)
answers = st.lists(st.tuples(st.floats(0, 5), delays, delays), min_size=1, max_size=30)


@settings(max_examples=40, deadline=None)
@given(ahead=st.floats(-5, 5), answers=answers, later=st.floats(0, BELIEVED / 2))
def test_the_time_lies_where_the_reading_says(
    ahead: float, answers: list[tuple[float, float, float]], later: float
) -> None:
    clock, now, doubts = SeenClock(), 1000.0, [float("inf")]
    for pause, there, back in answers:
        sent = now = now + pause
        told = date(int(AT + ahead + now + there))
        now += there + back
        assert clock.note("one", told, sent, now)
        reading = clock.reading(now)
        assert reading is not None
        assert reading.now - 1e-6 <= AT + ahead + now <= reading.now + reading.doubt + 1e-6
        doubts.append(reading.doubt)
    seen = clock.reading(now + later)
    assert seen is not None
    assert seen.now - 1e-6 <= AT + ahead + now + later <= seen.now + seen.doubt + 1e-6
    assert min(doubts) <= 2.0


def test_a_clock_that_was_set_and_that_of_another_member_count_anew() -> None:
    for whose in ("one", "two"):
        clock = SeenClock()
        clock.note("one", date(AT), 10.0, 10.001)
        clock.note(whose, date(AT - 3600), 11.0, 11.001)
        reading = clock.reading(11.001)
        assert reading is not None
        assert abs(reading.now - (AT - 3600)) < 1.1


def test_what_was_seen_long_ago_and_what_is_no_date_say_nothing() -> None:
    clock = SeenClock()
    assert clock.reading(10.0) is None
    assert not clock.note("one", "", 10.0, 10.1)
    assert not clock.note("one", "soon", 10.0, 10.1)
    assert clock.note("one", date(AT), 10.0, 10.1)
    assert clock.reading(10.0 + 2 * BELIEVED) is None


class VirtualTime(BlockingRuntime):
    """Time that passes with each sleep, and not otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.5

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_it_is_asked_until_the_time_is_known_well_enough() -> None:
    runtime, asked = VirtualTime(), 0

    async def ask(until: float) -> None:
        nonlocal asked
        asked += 1
        sent = runtime.now()
        await runtime.sleep(0.001)
        clock.note("one", date(int(AT + sent)), sent, runtime.now())

    clock = AskedClock(runtime, ask)
    run(clock.search(60.0, runtime.now() + 10))
    assert asked == 1, "for a minute one answer is enough"
    run(clock.search(60.0, runtime.now() + 10))
    assert asked == 1, "and is remembered"
    run(clock.search(1.0, runtime.now() + 10))
    reading = clock.reading(runtime.now())
    assert reading is not None
    assert reading.doubt <= 0.3


@pytest.mark.parametrize("vague", [False, True], ids=["found", "not to be had"])
def test_one_asks_for_all_who_want_to_know_it_at_once(monkeypatch: pytest.MonkeyPatch, vague: bool) -> None:
    """Hundreds who each asked forty times a second have kept etcd from answering renewals."""
    monkeypatch.setattr("lockline.backends.keyed.clock.A_SEARCH", 0.2 if vague else 1.5)
    runtime = LoopRuntime()
    under_way: list[float] = []
    most = asked = 0

    async def ask(until: float) -> None:
        nonlocal most, asked
        sent = runtime.now()
        under_way.append(sent)
        most, asked = max(most, len(under_way)), asked + 1
        await asyncio.sleep(0.001)
        under_way.remove(sent)
        clock.note("one", date(int(AT + sent)), sent - vague, runtime.now())

    clock = AskedClock(runtime, ask)

    async def all_of_them() -> None:
        until = runtime.now() + 60
        await asyncio.gather(*(clock.search(1.0, until) for _ in range(50)), *(clock.time(until) for _ in range(50)))

    asyncio.run(all_of_them())
    assert most == 1
    assert asked <= 61, "as often as one alone"


def test_who_looks_gives_it_up_when_it_is_surely_over_and_who_remembers_it_before_that() -> None:
    kept = Reading(AT, 0.5).stamped(7, 10.0, b"value")
    seen = Reading(AT + 8.5, 0.8).record(kept, 5, 3)
    assert (seen.value, seen.token) == (b"value", 7)
    assert seen.expires - seen.now - seen.doubt < 0, "nobody remembers it any more"
    assert Reading(AT + 9, 0.8).record(kept, 5, 3).value is None
    surely_fresh = Reading(AT + 5, 0.8).record(kept, 5, 3)
    assert surely_fresh.now - surely_fresh.written <= 6 + 1e-6


def test_time_never_goes_back_beside_what_was_written() -> None:
    kept = Reading(AT, 0.5).stamped(7, 10.0, b"value")
    behind = Reading(AT - 3, 1.0).record(kept, 5, 3)
    assert (behind.now, behind.doubt, behind.value) == (AT, 0.0, b"value")


def test_what_others_have_put_there_is_no_value() -> None:
    for junk in (
        b"",
        b"x",
        b"\n",
        b"[1, 2, 3]",
        b'[1, "a", 2]\nx',
        b"[1, 0, 2]\nx",
        b"[true, 1, 2]\nx",
        b"[1, NaN, 2]\nx",
        b"{}\nx",
    ):
        assert unpacked(junk) is None
    kept = KeptText(5, 1.5, 2.5, 0.25, b"\n\xff\n")
    assert unpacked(kept.packed()) == kept
