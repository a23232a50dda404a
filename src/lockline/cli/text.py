"""How times, places and tables read for people."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Sequence

import click

from ..core.claim import Standing
from ..errors import printable as printable

LONGEST_COMMAND = 128
"""Characters of a command that are shown; `lockline run` says no more, but others may write anything there."""


def say(text: str, *, dim: bool = False) -> None:
    """One line of our own to the person, beside what a command prints; never the reason that something fails."""
    try:
        click.secho(f"lockline: {text}", err=True, dim=dim or None)
    except OSError:  # nobody listens any more
        pass


def duration(seconds: float) -> str:
    """A length of time in its two largest units: 3m12s."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f}s"
    whole = int(seconds)
    for size, unit, smaller, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{unit}{rest:02d}{small}"
    return f"{whole}s"


def age(since: float) -> str:
    """How long ago that was, by the wall clock."""
    return duration(time.time() - since)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th."""
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def count(number: int, thing: str) -> str:
    """1 claim, 2 claims."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def who(claim: Standing) -> str:
    """The owner, and what it runs where it said so."""
    command = (claim.meta or {}).get("command")
    return printable(f"{claim.owner} ({command[:LONGEST_COMMAND]})" if isinstance(command, str) else claim.owner)


def everybody(claims: Sequence[Standing], most: int = 3) -> str:
    """The owners, the first few of them by name."""
    named = ", ".join(who(claim) for claim in claims[:most])
    return named if len(claims) <= most else f"{named} and {len(claims) - most} more"


def columns(text: str) -> int:
    """How many columns of a terminal the text takes: letters of the East and pictures take two, marks on a letter none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(char) in ("Mn", "Me") else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def cut(text: str, most: int) -> str:
    """The text, or as much of its beginning as fits into so many columns."""
    if text.isascii():
        return text[:most]
    for at, char in enumerate(text):
        most -= columns(char)
        if most < 0:
            return text[:at]
    return text


def wrapped(text: str, *, first: str, indent: int, most: int | None) -> list[str]:
    """The text in lines of at most so many columns, broken between words; the first behind `first`, the others indented."""
    lines, begun = [first], False
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if begun else first + word
        if begun and most is not None and columns(longer) > most:
            lines.append(" " * indent + word)
        else:
            lines[-1] = longer
        begun = True
    return lines


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[bool] = ()) -> None:
    """The rows below their head; the marked ones in green."""
    first, *lines = table(head, rows)
    click.secho(first, bold=True)
    for at, line in enumerate(lines):
        click.secho(line, fg="green" if marked and marked[at] else None)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned lines, the head first; whatever stands in a cell cannot steer the terminal."""
    lines = [[printable(cell) for cell in line] for line in (head, *rows)]
    widths = [max(columns(line[at]) for line in lines) for at in range(len(head))]
    return [
        "  ".join(cell + " " * (width - columns(cell)) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
