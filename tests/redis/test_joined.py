"""Steps that are joined do what they would have done one by one, or nothing at all."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable

import pytest

from lockline.backends.redis.commands import Wish
from lockline.backends.redis.joined import Step
from lockline.backends.redis.scripts import LEAVE, LOOK
from lockline.backends.resp.commands import pack
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer
from tests.tier import sample

from .joined_lines import Line, Told, stand, wish

pytestmark = pytest.mark.server

A_MOMENT = 0.5
"""Long enough for the server to do two steps of one packet, and soon over."""


@pytest.fixture
def lines(server: RedisServer) -> tuple[Line, Line]:
    return Line(server, "joined"), Line(server, "single")


def a_history(seed: int) -> tuple[list[Callable[[Line], Step | bytes]], list[Callable[[Line], Step]]]:
    """What has happened on a line of one client, and what happens next."""
    rand = random.Random(seed)
    numbers = itertools.count(1)
    whole = [rand.choice((1, 1, 3)) for _ in range(2)]
    terms = [wish(rand.choice((30, 60, 120, 180)), weight=all_of_it, capacity=all_of_it) for all_of_it in whole]
    line = [f"c-{next(numbers)}" for _ in range(rand.choice((1, 2, 3, 4, 8)))]
    past: list[Callable[[Line], Step | bytes]] = []

    def enters(claim_id: str, how: Wish) -> Callable[[Line], Step]:
        return lambda of: of.enter(claim_id, how)

    def leaves(claim_id: str, heir: str) -> Callable[[Line], Step]:
        return lambda of: of.leave(claim_id, heir)

    for claim_id in line:
        past.append(enters(claim_id, rand.choice(terms)))
    for _ in range(rand.choice((0, 0, 1, 2, 5))):
        if len(line) > 1 and rand.random() < 0.6:
            past.append(leaves(line[0], line[1]))
            line.pop(0)
        else:
            line.append(f"c-{next(numbers)}")
            past.append(enters(line[-1], rand.choice(terms)))
    if rand.random() < 0.1 and len(line) > 2:
        # Somebody gave up: an empty seat, or a shorter line.
        gone = line.pop(rand.randrange(1, len(line)))
        past.append(lambda of: LEAVE.by_digest((of.key,), (gone, "0", "")))
    if rand.random() < 0.2:
        # The clock of the server was ahead, once.
        future = f"{time.time_ns() // 1000 + 10**9}"
        past.append(lambda of: pack(("HSET", of.key, "last", future)))
    if rand.random() < 0.2:
        past.append(lambda of: LEAVE.by_digest((of.key,), ("withdrawn-1", "1", "")))
    following: list[Callable[[Line], Step]] = []
    chain = rand.randint(0, len(line) - 1)
    for at in range(chain):
        following.append(leaves(line[at], line[at + 1]))
    how = rand.choice(terms)
    for _ in range(rand.randint(max(0, 2 - chain), 6)):
        following.append(enters(f"c-{next(numbers)}", how))
    return past, following


@pytest.mark.parametrize("block", sample(range(3), range(8)))
def test_what_is_done_together_is_what_would_have_been_done_one_by_one(lines: tuple[Line, Line], block: int) -> None:
    joined, single = lines
    done = 0
    for seed in range(block * 40, block * 40 + 40):
        print("seed", seed)
        past, following = a_history(seed)
        since = joined.now
        for line in lines:
            line.redis.delete(line.key)
            line.ask(*(bytes(step(line)) for step in past))
        before = joined.everything()
        together = joined.together([step(joined) for step in following])
        if together is None:
            assert joined.everything() == before
            continue
        done += 1
        alone = single.one_by_one([step(single) for step in following])
        ours, theirs = Told(joined, since), Told(single, since)
        ours.assert_like(theirs)
        assert [ours.answer(each) for each in together] == [theirs.answer(each) for each in alone]
        tickets = [each[2] for each in together if isinstance(each, list)]
        last = [int(fields[b"last"]) for fields, _ in (before, joined.everything())]
        assert [last[0], *tickets] == sorted({last[0], *tickets})
        assert last[1] == max(last[0], *tickets, 0)
        # And it goes on from there, one by one, as if nothing had been joined.
        for line, told in ((joined, ours), (single, theirs)):
            state = line.redis.hget(line.key, "state")
            assert isinstance(state, bytes), told
        ends = [line.ask(LOOK.in_full((line.key,), ()))[0][1:] for line in lines]
        assert len(ends[0]) == len(ends[1])
    assert done > 25


# -- what has to be done one by one ----------------------------------------------------------------


@pytest.fixture
def line(lines: tuple[Line, Line]) -> Line:
    return lines[0]


def assert_apart(line: Line, *steps: Step) -> None:
    """Nothing was done, and one by one they can be."""
    before = line.everything()
    assert line.together(list(steps)) is None
    assert line.everything() == before
    for answer in line.one_by_one(list(steps)):
        assert not isinstance(answer, Exception)


def over(line: Line, claim_id: str) -> None:
    """Wait until the time of this claim is over."""
    fields, _ = line.everything()
    record = fields.get(b"+" + claim_id.encode()) or fields[b"~" + claim_id.encode()]
    _, since, ttl, *_ = record.split(b" ")
    wait_for(lambda: line.now > int(since) / 1000 + int(ttl), 60, "the end of its time")


def test_where_nobody_stands_each_comes_alone(line: Line) -> None:
    assert_apart(line, line.enter("a"), line.enter("b"))


def test_a_hash_that_is_no_line_is_left_alone(line: Line) -> None:
    line.redis.hset(line.key, "state", "+a")
    assert line.together([line.enter("b"), line.enter("c")]) is None
    assert line.redis.hgetall(line.key) == {b"state": b"+a"}


def test_a_line_without_its_last_ticket_is_somebody_elses(line: Line) -> None:
    stand(line, "a", "b", "c")
    line.redis.hdel(line.key, "last")
    before = line.everything()
    assert line.together([line.leave("a", "b"), line.leave("b", "c")]) is None
    assert line.everything() == before


def test_who_is_alone_has_no_heir(line: Line) -> None:
    stand(line, "a")
    assert_apart(line, line.leave("a", "b"), line.enter("c"))


def test_where_several_hold_each_goes_alone(line: Line) -> None:
    stand(line, "a", "b", terms=wish(weight=1, capacity=2))
    assert_apart(line, line.enter("c"), line.enter("d"))


def test_where_there_is_room_each_comes_alone(line: Line) -> None:
    stand(line, "a", terms=wish(weight=1, capacity=2))
    some = wish(weight=1, capacity=2)
    assert_apart(line, line.enter("b", some), line.enter("c", some))


@pytest.mark.parametrize("leaves", [False, True])
def test_where_the_holders_time_is_over_each_goes_alone(line: Line, leaves: bool) -> None:
    line.one_by_one([line.enter("a", wish(A_MOMENT)), line.enter("b")])
    over(line, "a")
    assert_apart(line, line.leave("a", "b") if leaves else line.enter("d"), line.enter("c"))


def test_one_that_does_not_hold_leaves_alone(line: Line) -> None:
    stand(line, "a", "b", "c")
    assert_apart(line, line.leave("b", "c"), line.enter("d"))


def test_one_that_is_gone_already_does_not_take_the_turn_of_who_holds(line: Line) -> None:
    """As after an eviction that it has not heard of."""
    stand(line, "a", "b", "c")
    assert_apart(line, line.leave("gone", "b"), line.enter("d"))
    assert line.redis.hget(line.key, "+a")


def test_one_whose_heir_is_not_there_leaves_alone(line: Line) -> None:
    stand(line, "a", "b")
    assert_apart(line, line.leave("a", "nobody"), line.enter("d"))


def test_one_whose_heir_stands_behind_another_leaves_alone(line: Line) -> None:
    """As where a stranger stands between them."""
    stand(line, "a", "b", "c")
    assert_apart(line, line.leave("a", "c"), line.enter("d"))


def test_one_whose_heir_needs_less_than_all_leaves_alone(line: Line) -> None:
    stand(line, "a", terms=wish(weight=2, capacity=2))
    stand(line, "b", "c", terms=wish(weight=1, capacity=2))
    assert_apart(line, line.leave("a", "b"), line.enter("d"))


@pytest.mark.parametrize("last", [False, True])
def test_one_whose_heirs_time_is_over_leaves_alone(line: Line, last: bool) -> None:
    line.one_by_one([line.enter("a"), line.enter("b", wish(A_MOMENT)), line.enter("c")])
    over(line, "b")
    line.put(due=9e15, watch=0)
    following = [line.enter("d")] if last else [line.leave("b", "c")]
    assert_apart(line, line.leave("a", "b"), *following)


def test_one_whose_heir_ends_before_the_others_look_leaves_alone(line: Line) -> None:
    """They have planned to look when the first one's time would be over; now that is sooner, and one by one they are told."""
    stand(line, "a")
    stand(line, "b", terms=wish(20))
    stand(line, "c")
    assert_apart(line, line.leave("a", "b"), line.enter("d"))


@pytest.mark.parametrize("known", ["a", "b"])
def test_one_that_was_heard_of_before_comes_alone_and_changes_nothing(line: Line, known: str) -> None:
    stand(line, "a", "b")
    assert_apart(line, line.enter(known), line.enter("d"))
    assert line.redis.hget(line.key, "q1") == b"b"


def test_one_that_waits_already_comes_alone_also_beside_one_who_leaves(line: Line) -> None:
    stand(line, "a", "b", "c")
    assert_apart(line, line.leave("a", "b"), line.enter("c"))


@pytest.mark.parametrize("leaves", [False, True])
def test_one_that_was_withdrawn_before_it_came_is_not_let_in_with_others(line: Line, leaves: bool) -> None:
    stand(line, "a", "b")
    line.ask(LEAVE.by_digest((line.key,), ("gone", "1", "")))
    first = line.leave("a", "b") if leaves else line.enter("c")
    assert_apart(line, first, line.enter("d"), line.enter("gone"))
    assert line.redis.hget(line.key, "~gone") is None


def test_a_note_of_another_is_no_reason(line: Line) -> None:
    stand(line, "a", "b")
    line.ask(LEAVE.by_digest((line.key,), ("gone", "1", "")))
    assert line.together([line.leave("a", "b"), line.enter("c")]) is not None


def test_a_server_without_memory_lets_nobody_in_and_lets_everybody_go(server: RedisServer, line: Line) -> None:
    stand(line, "a", "b", "c")
    before = line.everything()
    server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        assert line.together([line.leave("a", "b"), line.enter("d")]) is None
        assert line.everything() == before
        assert line.together([line.leave("a", "b"), line.leave("b", "c")]) == [1, 1]
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
    assert line.redis.hget(line.key, "+c")
