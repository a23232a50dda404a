"""What two looks at a store say of what happened between them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import lockline
from lockline.core.claim import Line, Standing
from lockline.core.engine import Engine
from lockline.core.shells import engine_of
from lockline.runtime.blocking import run
from lockline.web.board import CHANGES_KEPT, HISTORIES, REMEMBERED, Board, BoardNews
from lockline.web.survey import BUDGET, Seen, Survey


def claim(name: str, *, holds: bool = True, remaining: float = 9.0, since: float = 100.0, token: int = 7) -> Standing:
    return Standing(name, f"{name}:1", "lock", token, holds, 1, 1, 10.0, remaining, since, since if holds else None)


def seen(*claims: Standing, name: str = "x") -> Seen:
    return Seen({name: Line(name, claims)}, frozenset([name] if claims else []), 1, 0.01)


def told(board: Board, version: int) -> list[Any]:
    return [json.loads(change) for change in board.since(version)[1]]


def happened(news: list[BoardNews]) -> list[tuple[str, str]]:
    return [(one.what, one.who) for one in news]


def test_a_holder_that_had_time_left_has_let_go_and_one_that_had_none_has_lost() -> None:
    for remaining, what in ((9.0, "let go"), (0.9, "lost"), (1.2, "lost"), (2.5, "let go")):
        board = Board()
        board.take(seen(claim("a", remaining=remaining)), 1000.0)
        news = board.take(seen(claim("b", token=8)), 1001.0)
        assert happened(news) == [(what, "a:1"), ("took", "b:1")]


def test_the_history_of_a_lock_shows_one_holder_at_a_time() -> None:
    """Also where a store shows a claim that waited as one that holds since it came."""
    for granted in (1002.0, 990.0):
        board = Board()
        first, waits = claim("a", since=900.0), claim("b", holds=False, since=990.0, token=8)
        board.take(seen(first, waits), 1000.0)
        holds = replace(waits, holds=True, granted_at=granted)
        gone, took = board.take(seen(holds), 1004.0)
        assert (gone.what, gone.who, gone.at) == ("let go", "a:1", max(granted, 1000.0))
        assert (took.what, took.who, took.at) == ("took", "b:1", max(granted, 1000.0))
        assert gone.held == gone.at - 900


def test_what_happened_is_told_in_the_order_of_time() -> None:
    board = Board()
    board.take(Seen({}, frozenset(), 0, 0.01), 1000.0)
    lines = {name: Line(name, (claim(name, since=at),)) for name, at in (("a", 1003.0), ("b", 1001.0), ("c", 1002.0))}
    news = board.take(Seen(lines, frozenset(lines), 3, 0.01), 1004.0)
    assert [(one.name, one.at) for one in news] == [("b", 1001.0), ("c", 1002.0), ("a", 1003.0)]


def test_a_healthy_holder_that_was_not_seen_for_long_is_not_called_lost() -> None:
    board = Board()
    board.take(seen(claim("a", remaining=9.0)), 1000.0)
    assert happened(board.take(seen(), 1060.0)) == [("let go", "a:1")]


def test_nothing_is_said_of_a_time_when_the_store_was_silent() -> None:
    board = Board()
    board.take(seen(claim("a", remaining=1.0)), 1000.0)
    assert board.fail("no answer", 1001.0)
    assert not board.fail("no answer", 1002.0)
    assert told(board, 0)[0]["status"]["since"] == 1001.0
    assert board.take(seen(), 1030.0) == []
    assert told(board, 0)[0]["status"]["state"] == "live"


def test_a_waiter_that_goes_has_given_up_and_one_that_comes_waits() -> None:
    board = Board()
    board.take(seen(claim("a"), claim("b", holds=False)), 1000.0)
    news = board.take(seen(claim("a"), claim("c", holds=False)), 1001.0)
    assert happened(news) == [("waits", "c:1"), ("gave up", "b:1")]


def test_whom_this_page_evicted_is_told_with_the_reason() -> None:
    board = Board()
    board.take(seen(claim("a")), 1000.0)
    board.evicted("x", 7, "by Ada: stuck")
    assert [(one.what, one.why) for one in board.take(seen(), 1001.0)] == [("evicted", "by Ada: stuck")]
    assert json.loads(board.detail("x"))["history"][0]["why"] == "by Ada: stuck"


def test_nothing_is_said_of_a_time_when_nobody_looked() -> None:
    board = Board()
    assert board.take(seen(claim("a")), 1000.0) == []
    board.pause()
    assert board.take(seen(claim("b", token=8)), 2000.0) == []
    assert happened(board.take(seen(), 2001.0)) == [("let go", "b:1")]


def test_a_browser_gets_the_change_or_if_it_is_far_behind_everything() -> None:
    board = Board()
    board.take(seen(claim("a")), 1000.0)
    start = board.version
    (everything,) = told(board, 0)
    assert [line["name"] for line in everything["all"]] == ["x"]
    board.take(seen(claim("a", remaining=8.0)), 1001.0)
    (nothing,) = told(board, start)
    assert set(nothing) == {"v", "now", "status"}
    board.take(seen(claim("a", remaining=10.0)), 1002.0)
    assert told(board, start)[1]["renewed"] == [["x", [1012.0]]]
    assert told(board, board.version) == []
    for at in range(CHANGES_KEPT):
        board.take(seen(claim("a")), 1003.0 + at)
    assert "all" in told(board, start)[0]
    # From another process, or from before a restart.
    assert "all" in told(board, start + 10**9)[0]


def test_a_line_that_was_lost_stays_in_view_for_a_while() -> None:
    board = Board()
    board.take(seen(claim("a", remaining=0.5)), 1000.0)
    board.take(seen(), 1001.0)
    assert told(board, 0)[0]["all"][0]["holders"] == 0
    board.take(seen(), 1017.0)
    assert told(board, 0)[0]["all"] == []


def test_what_is_remembered_is_bounded() -> None:
    board = Board()
    for number in range(2 * REMEMBERED):
        board.take(seen(claim(f"a{number}", token=number + 1)), 1000.0 + number)
    assert len(json.loads(board.detail("x"))["history"]) == REMEMBERED
    for number in range(HISTORIES + 10):
        board.take(seen(claim("a"), name=f"line-{number}"), 2000.0 + number)
    assert len(board._histories) == HISTORIES
    assert len(board._lines) == 1


def test_a_store_that_shows_one_line_at_a_time_is_asked_within_its_budget(monkeypatch: Any) -> None:
    with lockline.connect("memory:one-by-one") as client:
        leases = [client.lock(f"{number:03}").acquire() for number in range(120)]
        engine = engine_of(client)
        # Sums that come out even, whatever the time is.
        clock, takes = [float(round(engine.runtime.now()))], 2**-7
        asked: list[str] = []

        class OneByOne:
            """The same store without the batch, where each question takes some milliseconds."""

            async def list(self, prefix: str, until: float) -> list[str]:
                return await engine.backend.list(prefix, until)

            async def look(self, name: str, until: float) -> Line:
                asked.append(name)
                clock[0] += takes
                return await engine.backend.look(name, until)

        class Slow:
            runtime = type("Runtime", (), {"now": staticmethod(lambda: clock[0])})
            backend = OneByOne()
            ask = staticmethod(lambda question: question(clock[0] + 10))

        survey = Survey(Slow())  # type: ignore[arg-type]
        first = run(survey.look())
        assert len(first.lines) == round(BUDGET / takes)
        assert len(first.names) == 120
        seen_names = set(first.lines)
        for _ in range(12):
            seen_names |= set(run(survey.look()).lines)
        assert seen_names == first.names
        for lease in leases:
            lease.release()
    assert isinstance(engine, Engine)


def test_a_store_that_was_never_seen_is_not_said_to_be_empty() -> None:
    board = Board()
    board.fail("no answer", 1001.0)
    assert told(board, 0)[0]["status"]["reached"] is False
    board.take(seen(), 1002.0)
    board.fail("no answer", 1003.0)
    assert told(board, 0)[0]["status"]["reached"] is True
