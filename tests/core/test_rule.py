"""The one rule: a claim holds when the weight ahead of it in the line leaves room for its own."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockline.core.claim import WHOLE
from lockline.core.rule import admitted, blockers


@dataclass
class Wish:
    weight: int
    capacity: int


LOCK, READ, WRITE = Wish(1, 1), Wish(1, WHOLE), Wish(WHOLE, WHOLE)


@pytest.mark.parametrize(
    ("line", "holders"),
    [
        ([], 0),
        ([LOCK], 1),
        ([LOCK, LOCK], 1),
        ([READ, READ, READ], 3),
        ([READ, WRITE, READ], 1),
        ([WRITE, READ, READ], 1),
        ([READ, READ, WRITE, READ, READ], 2),
        ([Wish(1, 3)] * 5, 3),
        # Two that disagree about the limit: never more holders than anybody inside allows.
        ([Wish(1, 5), Wish(1, 2), Wish(1, 5)], 2),
        ([Wish(1, 2), Wish(1, 5), Wish(1, 5)], 2),
        ([Wish(1, 5), Wish(1, 5), Wish(1, 2)], 2),
        ([Wish(1, 5), Wish(1, 5), LOCK], 2),
        ([LOCK, Wish(1, 5)], 1),
        ([READ, LOCK], 1),
        ([LOCK, READ], 1),
        # The first that does not fit ends the walk, though one behind it would fit.
        ([Wish(2, 3), Wish(2, 3), Wish(1, 3)], 1),
    ],
)
def test_who_holds(line: list[Wish], holders: int) -> None:
    assert admitted(line) == holders


wishes = st.builds(Wish, st.integers(1, 4), st.integers(1, 6)).filter(lambda wish: wish.weight <= wish.capacity)


@given(st.lists(wishes, max_size=12))
def test_holders_are_a_prefix_that_nobody_inside_objects_to(line: list[Wish]) -> None:
    count = admitted(line)
    inside = line[:count]
    assert sum(wish.weight for wish in inside) <= min((wish.capacity for wish in inside), default=0)
    if count < len(line):
        more = line[: count + 1]
        assert sum(wish.weight for wish in more) > min(wish.capacity for wish in more)


@given(st.lists(wishes, min_size=1, max_size=12), st.data())
def test_a_newcomer_never_takes_the_place_of_a_holder(line: list[Wish], data: st.DataObject) -> None:
    assert admitted([*line, data.draw(wishes)]) >= admitted(line)


@given(st.lists(wishes, min_size=1, max_size=12), st.data())
def test_whoever_leaves_costs_no_other_holder_its_place(line: list[Wish], data: st.DataObject) -> None:
    leaver = data.draw(st.integers(0, len(line) - 1))
    before = admitted(line)
    after = admitted(line[:leaver] + line[leaver + 1 :])
    assert after >= before - (leaver < before)


def test_behind_a_lock_the_one_just_ahead_is_watched() -> None:
    assert blockers([READ, LOCK, LOCK], LOCK) == [LOCK]
    line = [Wish(1, 1) for _ in range(5)]
    assert _same(blockers(line, LOCK), line[-1:])


def test_behind_a_semaphore_of_three_the_three_just_ahead_are_watched_the_nearest_first() -> None:
    line = [Wish(1, 3) for _ in range(20)]
    assert _same(blockers(line, Wish(1, 3)), line[:-4:-1])


def test_a_reader_watches_the_last_writer_and_no_other_reader() -> None:
    first, last = Wish(WHOLE, WHOLE), Wish(WHOLE, WHOLE)
    assert _same(blockers([first, *[READ] * 100], READ), [first])
    assert _same(blockers([first, READ, last, *[READ] * 100], READ), [last])


def test_a_writer_watches_the_one_just_ahead() -> None:
    readers = [Wish(1, WHOLE) for _ in range(5)]
    assert _same(blockers(readers, WRITE), readers[-1:])


def test_a_writer_who_became_a_reader_is_watched_no_more() -> None:
    became = Wish(1, WHOLE)
    assert blockers([became, READ, READ], READ) == []
    writer = Wish(WHOLE, WHOLE)
    assert _same(blockers([writer, became, READ], READ), [writer])


def test_of_weights_the_heaviest_are_watched_and_of_limits_the_smallest() -> None:
    heavy, heavier = Wish(24, 80), Wish(40, 80)
    assert _same(blockers([heavy, heavier, *[Wish(1, 80)] * 30], Wish(24, 80)), [heavier, heavy])
    small = Wish(1, 1)
    assert _same(blockers([small, *[Wish(1, 5)] * 3], Wish(1, 5)), [small])


def test_who_has_room_watches_nobody() -> None:
    assert blockers([], LOCK) == []
    assert blockers([READ] * 5, READ) == []
    assert blockers([Wish(1, 3)] * 2, Wish(1, 3)) == []


@given(st.lists(wishes, max_size=8), wishes)
def test_a_claim_waits_exactly_as_long_as_somebody_is_there_to_watch(ahead: list[Wish], mine: Wish) -> None:
    assert bool(blockers(ahead, mine)) == (admitted([*ahead, mine]) <= len(ahead))


@given(st.lists(wishes, max_size=7), wishes)
def test_no_end_but_theirs_brings_the_turn_and_no_fewer_would_do(ahead: list[Wish], mine: Wish) -> None:
    watched = blockers(ahead, mine)
    if not watched:
        return
    # While all of them stay there is no room, whoever else leaves or comes to weigh less.
    assert admitted([*watched, mine]) <= len(watched)
    for fewer in itertools.combinations(ahead, len(watched) - 1):
        assert admitted([*fewer, mine]) > len(fewer)


def _same(found: list[Wish], expected: list[Wish]) -> bool:
    """The very same claims, in the same order: equal ones are others."""
    return [id(one) for one in found] == [id(one) for one in expected]
