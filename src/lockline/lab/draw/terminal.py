"""A run and the matrix in a terminal."""

from __future__ import annotations

import textwrap
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
PLAIN = str.maketrans(
    {
        "█": "#",
        "░": "/",
        "╌": "-",
        "─": ".",
        "┄": ".",
        "▁": "_",
        "⛨": "F",
        "†": "+",
        "◷": "c",
        "▲": "^",
        "·": "-",
        "…": "~",
    }
)
"""For a terminal whose encoding does not have them."""


def in_characters_of(encoding: str | None, text: str) -> str:
    """The same in characters that such a terminal has."""
    try:
        text.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        assert encoding is not None
        return text.translate(PLAIN).encode(encoding, "replace").decode(encoding)
    return text


def show(outcome: Outcome, width: int = 100) -> str:
    """The time line of one run, and what it means."""
    drawn = picture(outcome)
    beside = max((len(_tokens(drawn, lane)) + 2 for lane in drawn.lanes if _tokens(drawn, lane)), default=0)
    room = max(20, width - LABEL - 1 - beside)
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
    tokens = _tokens(drawn, lane)
    return [f"{lane[: LABEL - 1]:{LABEL}}" + "".join(row) + (f"  {tokens}" if tokens else "")]


def _tokens(drawn: Picture, lane: str) -> str:
    """Which numbers it held, in order; of many the first and the last."""
    held = [
        bar.text.removeprefix("token ")
        for bar in drawn.bars
        if bar.lane == lane and bar.kind == "hold" and bar.text != "holds"
    ]
    if not held:
        return ""
    return f"token {', '.join(held)}" if len(held) < 4 else f"tokens {held[0]} … {held[-1]}"


def matrix(
    outcomes: Mapping[tuple[str, str], Outcome], locks: Sequence[str], failures: Sequence[str], width: int = 100
) -> str:
    """Locks down, failures across; a letter and a number for each, as wide as there is room."""
    longest = max(map(len, locks)) + 1
    each = next((size for size in (3, 2) if longest + size * len(failures) <= width), 1)
    wide = min(longest, max(8, width - each * len(failures)))
    numbers = range(1, len(failures) + 1)
    if each == 3:
        lines = [" " * wide + "".join(f"{number:>2} " for number in numbers).rstrip()]
    else:  # one digit below the other
        lines = [
            " " * wide + "".join(f"{digit:{each}}" for digit in row).rstrip()
            for row in zip(*(f"{number:>2}" for number in numbers), strict=True)
        ]
    for lock in locks:
        cells = [_cell(outcomes.get((lock, failure)), each) for failure in failures]
        lines.append(f"{lock[: wide - 1]:{wide}}" + "".join(cells).rstrip())
    lines.append("")
    half = (len(failures) + 1) // 2 if width >= 72 else len(failures)
    for at in range(half):
        pair = [f"{number + 1:>3} {failures[number]:32}" for number in (at, at + half) if number < len(failures)]
        lines.append("".join(pair).rstrip())
    lines.append("")
    named = [verdict for verdict in Verdict if verdict not in (Verdict.NOT_APPLICABLE, Verdict.FAILED)]
    rows = textwrap.wrap("  ".join(f"{LETTERS[v]}\0{v.value.replace(' ', chr(0))}" for v in named), max(width - 1, 20))
    for row in rows:
        shown = (word.replace("\0", " ") for word in row.split())
        lines.append("  ".join(click.style(word, fg=COLOURS[_named(word)]) for word in shown))
    return "\n".join(lines)


def _named(word: str) -> Verdict:
    return Verdict(word[2:])


def _cell(outcome: Outcome | None, wide: int) -> str:
    if outcome is None:
        return f"{'…':>{min(wide, 2)}}" + " " * (wide > 2)
    letter = LETTERS[outcome.verdict] + ("" if outcome.as_expected or wide == 1 else "!")
    text = f"{letter:>2} " if wide == 3 else f"{letter:{wide}}"
    return click.style(text, fg=COLOURS[outcome.verdict], bold=not outcome.as_expected)
