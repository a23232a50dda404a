"""What is drawn in a terminal fits into it."""

from __future__ import annotations

import click
import pytest

from lockline.lab import failures, locks
from lockline.lab.draw import terminal
from lockline.lab.trace import TraceEvent
from lockline.lab.verdicts import Outcome, Verdict

LOCKS = list(locks.catalogue())
FAILURES = list(failures.catalogue())


def everything(verdict: Verdict = Verdict.SAFE) -> dict[tuple[str, str], Outcome]:
    """Every cell the same; the first one not as expected."""
    cells = {
        (lock, failure): Outcome(lock, failure, verdict, "", expected=verdict) for lock in LOCKS for failure in FAILURES
    }
    cells[LOCKS[0], FAILURES[0]] = Outcome(LOCKS[0], FAILURES[0], Verdict.LATE, "", expected=verdict)
    return cells


@pytest.mark.parametrize("width", [200, 100, 80, 60, 45, 40])
def test_the_matrix_is_no_wider_than_the_terminal_and_has_every_cell(width: int) -> None:
    lines = click.unstyle(terminal.matrix(everything(), LOCKS, FAILURES, width)).splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.partition(" ")[0] == "lockline-etcd"]
    assert [row.count("·") for row in rows] == [len(FAILURES)]


@pytest.mark.parametrize("width", [100, 60, 50])
def test_a_time_line_is_no_wider_than_the_terminal_and_has_its_tokens(width: int) -> None:
    events = (
        TraceEvent(0.0, "A", "asked"), TraceEvent(0.1, "A", "granted", token=33), TraceEvent(2.0, "A", "letting go", token=33),
        TraceEvent(2.1, "B", "granted", token=34), TraceEvent(3.0, "B", "letting go", token=34),
    )  # fmt: skip
    drawn = click.unstyle(terminal.show(Outcome("lock", "failure", Verdict.SAFE, "", events=events), width))
    lanes = [line for line in drawn.splitlines() if "█" in line and "holds" not in line]
    assert ["token 33" in lanes[0], "token 34" in lanes[1]] == [True, True]
    assert max(map(len, lanes)) <= width


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "cp1252"])
def test_a_terminal_without_these_characters_gets_others_that_mean_the_same(encoding: str) -> None:
    events = (TraceEvent(0.0, "A", "asked"), TraceEvent(0.1, "A", "granted"), TraceEvent(2.0, "A", "killed"))
    text = terminal.show(Outcome("lock", "failure", Verdict.SAFE, "", events=events))
    shown = terminal.in_characters_of(encoding, text)
    assert shown.encode(encoding)
    assert "?" not in shown
    assert "###" in shown
    assert terminal.in_characters_of("utf-8", text) == text
