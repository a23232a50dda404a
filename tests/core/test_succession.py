"""Who may be handed a turn by its own client, and by whom: decided without the store, so each condition counts."""

from __future__ import annotations

import pytest

from lockline.core.claim import WHOLE, Claim, Waiting
from lockline.core.live import LiveClaim
from lockline.core.succession import close_up, doubt, follow, hand_turn_on
from lockline.core.waiting import Hints
from lockline.runtime.blocking import BlockingRuntime

from .nobody import NOBODY

TTL = 9.0


class Turned(BlockingRuntime):
    """Threads, on a clock that the test turns."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0
        self.now = lambda: self.time


class Line:
    """Claims of one client in the order of their arrival, the first of them holding, each confirmed just now."""

    def __init__(self, *ids: str, weight: int = 1, capacity: int = 1) -> None:
        self.runtime = Turned()
        self.hints = Hints(self.runtime, None, lambda: None)
        self.known: dict[str, LiveClaim] = {}
        before = ""
        for ticket, claim_id in enumerate(ids, 41):
            claim = Claim("x", claim_id, "me", "lock", weight, capacity, TTL, 0.0, "")
            live = LiveClaim(claim, self.runtime, (None, "x"), True, None, NOBODY)
            live.acknowledge(self.runtime.time, TTL)
            self.known[claim_id] = live
            if not before:
                live.grant(ticket)
            else:
                self.hints.expect(claim_id)
                follow(live, Waiting(1, ticket=ticket, behind=before), self.known)
            before = claim_id

    def __getitem__(self, claim_id: str) -> LiveClaim:
        return self.known[claim_id]

    def release(self, claim_id: str) -> LiveClaim | None:
        live = self.known[claim_id]
        live.begin_release()
        return hand_turn_on(live, self.runtime.time, self.hints)


def test_the_next_one_gets_its_turn_under_its_own_ticket() -> None:
    line = Line("a", "b")
    assert line.release("a") is line["b"]
    assert line["b"].turn == (42, None)


def test_a_turn_is_handed_on_once() -> None:
    line = Line("a", "b")
    line.release("a")
    assert line.release("a") is None


def test_a_lost_one_hands_nothing_on() -> None:
    line = Line("a", "b")
    line["a"].note_loss("evicted")
    assert line.release("a") is None
    assert line["b"].turn is None


@pytest.mark.parametrize("age", [TTL, TTL * 0.7])
def test_nothing_is_handed_to_one_whose_own_time_is_over_or_nearly(age: float) -> None:
    line = Line("a", "b")
    line.runtime.time += age
    assert line.release("a") is None
    assert line["b"].turn is None


def test_a_renewal_while_it_waited_counts_for_the_next_one() -> None:
    line = Line("a", "b")
    line.runtime.time += TTL * 0.6
    line["b"].acknowledge(line.runtime.time, TTL)
    line.runtime.time += TTL * 0.3
    assert line.release("a") is line["b"]


def test_nothing_is_handed_to_one_that_gave_up() -> None:
    line = Line("a", "b")
    line["b"].give_up()
    assert line.release("a") is None


def test_nothing_is_handed_to_one_behind_a_session_that_has_ended() -> None:
    line = Line("a", "b")
    line["b"].ceiling = type(line["b"].ceiling)(line.runtime.time - 1)
    assert line.release("a") is None


def test_who_stood_behind_one_that_is_gone_stands_behind_the_one_before_it() -> None:
    line = Line("a", "b", "c")
    line["b"].give_up()
    close_up(line["b"], line.known)
    assert line.release("a") is line["c"]


def test_who_stood_behind_one_that_gave_up_without_an_answer_has_to_be_told_by_the_store() -> None:
    line = Line("a", "b", "c")
    line["b"].give_up()
    assert line.release("a") is None


def test_a_stranger_ahead_is_nobody_to_be_handed_anything_by() -> None:
    line = Line("a")
    claim = Claim("x", "c", "me", "lock", 1, 1, TTL, 0.0, "")
    late = LiveClaim(claim, line.runtime, (None, "x"), True, None, NOBODY)
    late.acknowledge(line.runtime.time, TTL)
    follow(late, Waiting(2, ticket=50, behind="a stranger"), line.known)
    assert line.release("a") is None


@pytest.mark.parametrize(("weight", "capacity"), [(1, 2), (1, WHOLE)], ids=["permit", "reader"])
def test_what_others_may_hold_too_is_not_handed_on(weight: int, capacity: int) -> None:
    line = Line("a", "b", weight=weight, capacity=capacity)
    assert line.release("a") is None


def test_a_writer_that_became_a_reader_hands_nothing_on() -> None:
    line = Line("a", "b", weight=WHOLE, capacity=WHOLE)
    line["a"].claim = line["a"].claim._replace(weight=1, kind="read")
    assert line.release("a") is None


def test_whoever_has_the_turn_of_one_that_was_not_there_any_more_hands_nothing_on() -> None:
    line = Line("a", "b", "c", "d", "e")
    heir = line.release("a")
    line["b"].grant(42)
    line.release("b")
    line["c"].grant(43)
    doubt(heir, line.hints)
    assert line.hints.take(()) == ["b", "c", "d", "e"]
    assert line.release("c") is None
    assert line["d"].turn is None
    assert line["d"].heir is line["e"]


@pytest.mark.parametrize("token", [42, 43])
def test_nothing_is_handed_on_under_a_ticket_that_is_not_above_the_token(token: int) -> None:
    """After a hand-over the store has given the next claim a higher ticket, which its client does not know."""
    line = Line("a", "b")
    line["a"].grant(token)
    assert line.release("a") is None
    assert line["b"].turn is None
