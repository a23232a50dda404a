"""The names of the nodes tell the line, and a waiter watches exactly what can bring its turn."""

from __future__ import annotations

import itertools
import time

from hypothesis import assume, given
from hypothesis import strategies as st

from lockline.backends.zookeeper.claims import OwnNode
from lockline.backends.zookeeper.commands import ClaimNode, escaped, lighter_name, node_name, read_line, unescaped
from lockline.backends.zookeeper.subscription import View
from lockline.core.claim import Claim
from lockline.core.rule import admitted, blockers

from ..tier import sample


def place(sequence: int, weight: int = 1, capacity: int = 1) -> ClaimNode:
    return ClaimNode(sequence, f"{weight}.{capacity}.c{sequence}.{sequence:010d}", f"c{sequence}", weight, capacity)


NAMES = sample(st.text([*map(chr, range(128)), *"\x80äß€漢\u2028\ufeff\U0001f512"], min_size=1), st.text(min_size=1))
"""For any text the library first makes a table of all characters, which takes seconds."""


@given(NAMES)
def test_any_name_becomes_the_name_of_a_node_and_back(name: str) -> None:
    node = escaped(name)
    assert unescaped(node) == name
    assert not set(node) & set("/.\0 ")


def test_the_line_is_read_in_the_order_of_the_sequence_whatever_the_order_of_the_list() -> None:
    nodes = [node_name(1, 1, f"a-{n}") + f"{n:010d}" for n in (9, 10, 2)]
    assert [seen.id for seen in read_line(nodes)] == ["a-2", "a-9", "a-10"]


def test_what_is_no_claim_is_passed_over() -> None:
    assert read_line(["lost+found", "x.y", "1.1.a.b.c", "lock-0000000001", "=x.0000000001"]) == []


def test_the_sequence_may_run_over_and_all_the_way_round() -> None:
    for numbers in ([2147483646, 2147483647, -2147483648, -2147483647], [-2, -1, 0, 1]):
        nodes = [node_name(1, 1, str(n)) + f"{n:010d}" for n in numbers]
        assert [seen.id for seen in read_line(reversed(nodes))] == [str(n) for n in numbers]


def test_a_claim_that_became_lighter_keeps_its_place() -> None:
    (writer,) = read_line(["8.8.w.0000000003"])
    line = read_line(["8.8.w.0000000003", lighter_name(writer.node, 1), "1.8.r.0000000004"])
    assert [(seen.id, seen.weight) for seen in line] == [("w", 1), ("r", 1)]
    assert admitted(line) == 2


def test_behind_a_lock_only_the_one_just_ahead_is_watched() -> None:
    line = [place(n) for n in range(200)]
    assert blockers(line[:-1], line[-1]) == [line[-2]]


def test_behind_a_semaphore_of_three_the_three_just_ahead_are_watched() -> None:
    line = [place(n, capacity=3) for n in range(20)]
    assert blockers(line[:-1], line[-1]) == [line[-2], line[-3], line[-4]]


def test_a_reader_watches_the_last_writer_and_no_other_reader() -> None:
    line = [place(0, 8, 8), place(1, 1, 8), place(2, 8, 8), place(3, 1, 8), place(4, 1, 8)]
    assert blockers(line[:-1], line[-1]) == [line[2]]


CLAIMS = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=7)


@given(CLAIMS)
def test_while_those_who_are_watched_stay_nobody_elses_leaving_brings_the_turn(claims: list[tuple[int, int]]) -> None:
    line = [place(at, weight, capacity) for at, (weight, capacity) in enumerate(claims)]
    *ahead, mine = line
    assume(ahead and admitted(line) < len(line))
    watched = blockers(ahead, mine)
    others = [seen for seen in ahead if seen not in watched]
    for count in range(len(others) + 1):
        for gone in itertools.combinations(others, count):
            left = [seen for seen in line if seen not in gone]
            assert admitted(left) < len(left)


@given(CLAIMS, st.data())
def test_a_second_look_at_a_line_finds_what_reading_all_of_it_would_find(
    claims: list[tuple[int, int]], data: st.DataObject
) -> None:
    line = [place(at, weight, capacity) for at, (weight, capacity) in enumerate(claims)]
    at = data.draw(st.integers(0, len(line) - 1))
    stays = data.draw(st.lists(st.booleans(), min_size=len(line), max_size=len(line)))
    left = [seen for seen, there in zip(line, stays, strict=True) if there]
    names = [seen.node for seen in left]
    if data.draw(st.booleans()):
        names += [lighter_name(seen.node, 1) for seen in left if seen.weight > 1]
    names += data.draw(st.sampled_from([[], ["0"], ["keep"], ["~"]]))
    own, read = (OwnNode(Claim("x", f"c{at}", "", "permit", *claims[at], 1.0, 0.0, ""), "/x") for _ in range(2))
    for node in (own, read):
        node.take_in(line[: at + 2], at)
    seen = read_line(names)
    found = next((place for place, there in enumerate(seen) if there.id == f"c{at}"), None)
    read.take_in(seen, found)
    view = View(names)
    if view.plain and own.close_up(view.names or frozenset()):
        assert (own.ahead, own.holds, own.gone, own.mine) == (read.ahead, read.holds, read.gone, read.mine)
    else:
        assert read.gone or len(names) > len(left)


def test_two_thousand_who_wait_in_one_line_are_all_told_of_one_look_in_less_time_than_a_session_lasts() -> None:
    line = [place(at, 1, 1) for at in range(2000)]
    nodes = [OwnNode(Claim("x", f"c{at}", "", "lock", 1, 1, 1.0, 0.0, ""), "/x") for at in range(2000)]
    for at, node in enumerate(nodes):
        node.take_in(line, at)
    view = View([seen.node for seen in line[1:]])
    began = time.process_time()
    assert view.plain
    assert all(node.close_up(view.names or frozenset()) for node in nodes[1:])
    # In kazoo's own thread, which keeps the session alive: a comparison of each name with each would take a minute.
    assert time.process_time() - began < 20
    assert [node.holds for node in nodes[1:4]] == [True, False, False]
