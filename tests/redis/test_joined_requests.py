"""Requests that meet on their way: which become one, in which order, and when they stay what they are."""

from __future__ import annotations

import itertools
from typing import Any

import hiredis
import pytest

from lockline.backends.redis.joined import MOST, Bunch, Step, join
from lockline.backends.redis.scripts import LEAVE, NO_CHANNEL, PLACE
from lockline.runtime import clock
from tests.servers.redis import RedisServer

from .joined_lines import Line, stand, wish

pytestmark = pytest.mark.server


@pytest.fixture
def lines(server: RedisServer) -> tuple[Line, Line]:
    return Line(server, "joined"), Line(server, "single")


@pytest.fixture
def line(lines: tuple[Line, Line]) -> Line:
    return lines[0]


# -- what becomes of requests that meet ------------------------------------------------------------


def places(parcels: Any) -> list[Any]:
    return [each if isinstance(each, int) else each.places for each in parcels]


def test_leaves_go_first_in_the_order_in_which_they_handed_on(line: Line) -> None:
    steps = [line.leave("b", "c"), line.enter("x"), line.leave("a", "b"), line.leave("c", "d"), line.enter("y")]
    assert places(join(steps)) == [[2, 0, 3, 1, 4]]


def test_lines_are_kept_apart_and_nobody_passes_a_request_of_another_kind(lines: tuple[Line, Line]) -> None:
    one, other = lines
    both = [one.enter("a"), other.enter("b"), one.enter("c"), other.enter("d")]
    assert places(join(both)) == [[0, 2], [1, 3]]
    assert places(join([*both[:3], b"PING", one.enter("e"), one.enter("f")])) == [[0, 2], 1, 3, [4, 5]]
    assert join([one.enter("a"), b"PING", one.enter("c")]) is None
    assert join([one.enter("a"), other.enter("b")]) is None
    alone = Step(one.line, "a", "", b"")
    assert join([one.enter("c"), alone, one.enter("d")]) is None


def test_those_of_different_wishes_or_chains_are_kept_apart(line: Line) -> None:
    assert join([line.enter("a"), line.enter("b", wish(30))]) is None
    assert places(join([line.leave("a", "b"), line.enter("x"), line.leave("c", "d"), line.enter("y")])) == [
        [0, 1],
        [2, 3],
    ]


def test_a_bunch_has_its_measure(line: Line) -> None:
    stand(line, "holder")
    steps = [line.enter(f"c{number}") for number in range(2 * MOST + 1)]
    parcels = join(steps)
    assert parcels is not None
    assert [len(each.places) for each in parcels if isinstance(each, Bunch)] == [MOST, MOST]
    assert parcels[-1] == 2 * MOST
    assert line.together(steps[:MOST]) is not None
    chain = ["holder", *(f"c{number}" for number in range(MOST))]
    leaves = [line.leave(*pair) for pair in itertools.pairwise(chain)]
    assert line.together([*leaves, *(line.enter(f"d{number}") for number in range(MOST))]) is not None
    assert len(line.redis.hgetall(line.key)) == 2 + 1 + 2 * MOST


def test_after_one_that_was_sent_apart_the_next_ones_go_alone_until_all_of_that_has_arrived(line: Line) -> None:
    (bunch,) = join([line.enter("a"), line.enter("b")]) or ()
    assert isinstance(bunch, Bunch)
    bytes(bunch)
    assert bunch.spread(None) is None
    line.line.apart_until = clock.now() + 60
    assert join([line.enter("c"), line.enter("d")]) is None
    line.line.apart_until = clock.now() - 0.001
    assert join([line.enter("c"), line.enter("d")]) is not None


def test_a_server_that_does_not_know_how_is_told_with_the_next_bunch(line: Line) -> None:
    stand(line, "a")
    line.redis.script_flush()
    (bunch,) = join([line.enter("b"), line.enter("c")]) or ()
    assert bunch.spread(hiredis.ReplyError("NOSCRIPT No matching script.")) is None  # type: ignore[union-attr]
    assert b"EVAL\r\n" in bytes(bunch)
    assert b"EVALSHA\r\n" in bytes(bunch)


# -- whom one stands behind ------------------------------------------------------------------------


def test_who_stands_behind_empty_seats_is_told_of_the_one_before_them(line: Line) -> None:
    stand(line, "a", "b", "c", "d")
    line.ask(LEAVE.by_digest((line.key,), ("c", "0", "")))
    told = line.ask(PLACE.in_full((line.key,), ("d", NO_CHANNEL, "0")))[0]
    assert told[3] == b"b"
    # The line begins with the empty seat now, and this step itself has let in who holds.
    line.put(first=1)
    line.redis.hdel(line.key, "+a")
    told = line.ask(PLACE.in_full((line.key,), ("d", NO_CHANNEL, "0")))[0]
    assert told[3] == b"b"
    assert line.redis.hget(line.key, "+b")
    # And where the step does not know who holds, it says nothing, rather than a seat.
    told = line.ask(PLACE.in_full((line.key,), ("d", NO_CHANNEL, "0")))[0]
    assert told[3] == b""
