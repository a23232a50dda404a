"""Who is passed over is counted by turns, whatever time they take."""

from __future__ import annotations

from lockline.lab.draw.lanes import who_is_there
from lockline.lab.failures.crowds import A_TURN_OR_TWO, overtaken
from lockline.lab.trace import TraceEvent


def turns(order: str, everybody: str = "abcdefgh") -> list[TraceEvent]:
    """All ask; whoever is named has its turn and asks again at once."""
    events = [TraceEvent(0.0, lane, "asked") for lane in everybody]
    for number, lane in enumerate(order, 1):
        events += [
            TraceEvent(number, lane, "granted"),
            TraceEvent(number + 0.5, lane, "letting go"),
            TraceEvent(number + 0.5, lane, "asked"),
        ]
    return events


def test_in_a_line_nobody_is_overtaken_more_than_once() -> None:
    assert overtaken(turns("abcdefgh" * 3)) == 1


def test_one_who_came_back_before_a_slow_request_had_arrived_is_no_thief() -> None:
    assert overtaken(turns("abcdefg" + "abcdefgh" * 2)) == 2 <= A_TURN_OR_TWO


def test_one_who_waits_while_another_has_turn_after_turn_is_overtaken_also_if_he_never_gets_any() -> None:
    assert overtaken(turns("aaaaa")) == 5
    assert overtaken(turns("abababab", "abc")) == 4


def test_clients_stand_above_servers_and_a_stepped_clock_makes_nobody_a_server() -> None:
    asks = [TraceEvent(2, "A", "asked"), TraceEvent(3, "A", "request", to="Redis"), TraceEvent(3, "B", "asked")]
    assert who_is_there([TraceEvent(1, "B", "clock"), *asks]) == (["A", "B"], ["Redis"])
    assert who_is_there([TraceEvent(1, "Redis", "clock"), *asks]) == (["A", "B"], ["Redis"])
    assert who_is_there([TraceEvent(1, "ZooKeeper", "clock"), *asks]) == (["A", "B"], ["Redis", "ZooKeeper"])
