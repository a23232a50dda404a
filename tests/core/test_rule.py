"""The one rule: a claim holds when the weight ahead of it in the line leaves room for its own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockline.core.claim import WHOLE
from lockline.core.rule import admitted


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
