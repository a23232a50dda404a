"""A run and the matrix in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from ..verdicts import Outcome, Verdict
from .lanes import Picture, picture

COLOURS = {
    Verdict.LOST_UPDATE: "red",
    Verdict.TWO_HOLDERS: "red",
    Verdict.STUCK: "magenta",
    Verdict.LATE: "yellow",
    Verdict.COSTLY: "yellow",
    Verdict.SAFE: "green",
    Verdict.NOT_APPLICABLE: "bright_black",
    Verdict.MISSING: "bright_black",
    Verdict.FAILED: "bright_red",
}
LETTERS = {
    Verdict.LOST_UPDATE: "X",
    Verdict.TWO_HOLDERS: "2",
    Verdict.STUCK: "#",
    Verdict.LATE: "L",
    Verdict.COSTLY: "$",
    Verdict.SAFE: "·",
    Verdict.NOT_APPLICABLE: " ",
    Verdict.MISSING: "?",
    Verdict.FAILED: "!",
}
LABEL = 12


def show(outcome: Outcome, width: int = 100) -> str:
    """The time line of one run, and what it means."""
    drawn = picture(outcome)
    room = max(30, width - LABEL - 2)
    lines = [headline(outcome), ""]
    for lane in [*drawn.lanes, *(name for name in drawn.servers if name not in drawn.lanes)]:
        lines += _lane(drawn, lane, room)
    if drawn.violation is not None:
        at = _column(drawn, drawn.violation, room)
        lines.append(" " * (LABEL + at) + click.style("▲ here", fg="red", bold=True))
    lines.append(" " * LABEL + f"0 s{f'(not to scale)  {drawn.length:.1f} s':>{room - 3}}")
    lines.append(
        " " * LABEL
        + click.style(
            "█ holds  ░ frozen  ╌ waits  ▁ server down  r/w reads, writes  ⛨ refused by the fence  † killed", dim=True
        )
    )
    lines += ["", "What happened:"]
    zero = next((event.at for event in outcome.events if event.kind == "asked"), 0.0)
    for event in outcome.events:
        if event.kind not in ("request", "reply", "held back"):
            token = f" (token {event.token})" if event.token is not None else ""
            lines.append(
                f"  {event.at - zero:7.3f} s  {event.lane:10} {event.kind}{': ' + event.text if event.text else ''}{token}"
            )
    lines += ["", f"Why:  {outcome.cause or outcome.reason}"]
    if outcome.cure:
        lines.append(f"Cure: {outcome.cure} ({outcome.link})")
    if not outcome.as_expected and outcome.expected is not None:
        lines.append(click.style(f"The literature says: {outcome.expected.value}.", fg="red"))
    return "\n".join(lines)


def headline(outcome: Outcome) -> str:
    """The cell in one line."""
    verdict = click.style(f"{outcome.verdict.value} {outcome.figure}".strip(), fg=COLOURS[outcome.verdict], bold=True)
    return f"{outcome.lock} · {outcome.failure} · {verdict}"


def _column(drawn: Picture, at: float, room: int) -> int:
    return int(drawn.where(at) * (room - 1))


def _lane(drawn: Picture, lane: str, room: int) -> list[str]:
    row = ["─" if lane in drawn.lanes else "┄"] * room
    for kind, sign in (("waits", "╌"), ("hold", "█"), ("frozen", "░"), ("down", "▁")):
        for bar in drawn.bars:
            if bar.lane == lane and bar.kind == kind:
                for at in range(_column(drawn, bar.began, room), _column(drawn, bar.ended, room) + 1):
                    row[at] = sign
    signs = {"read": "r", "wrote": "w", "fence refused": "⛨", "killed": "†", "clock": "◷"}
    for mark in drawn.marks:
        if mark.lane == lane and mark.kind in signs:
            row[_column(drawn, mark.at, room)] = signs[mark.kind]
    tokens = " ".join(bar.text for bar in drawn.bars if bar.lane == lane and bar.kind == "hold" and bar.text != "holds")
    return [f"{lane[: LABEL - 1]:{LABEL}}" + "".join(row) + (f"  {tokens}" if tokens else "")]


def matrix(outcomes: Mapping[tuple[str, str], Outcome], locks: Sequence[str], failures: Sequence[str]) -> str:
    """Locks down, failures across; a letter and a number for each."""
    wide = max(map(len, locks)) + 1
    head = " " * wide + " ".join(f"{number:>2}" for number in range(1, len(failures) + 1))
    lines = [head]
    for lock in locks:
        cells = []
        for failure in failures:
            outcome = outcomes.get((lock, failure))
            if outcome is None:
                cells.append(" …")
                continue
            letter = LETTERS[outcome.verdict] + ("" if outcome.as_expected else "!")
            cells.append(click.style(f"{letter:>2}", fg=COLOURS[outcome.verdict], bold=not outcome.as_expected))
        lines.append(f"{lock:{wide}}" + " ".join(cells))
    lines.append("")
    half = (len(failures) + 1) // 2
    for at in range(half):
        pair = [f"{number + 1:>3} {failures[number]:32}" for number in (at, at + half) if number < len(failures)]
        lines.append("".join(pair).rstrip())
    lines.append("")
    named = (v for v in Verdict if v not in (Verdict.NOT_APPLICABLE, Verdict.FAILED))
    lines.append("  ".join(click.style(f"{LETTERS[each]} {each.value}", fg=COLOURS[each]) for each in named))
    return "\n".join(lines)
