"""A line as the names of its nodes tell it: one list of children says who stands where, and who holds.

A claim's node is called `<weight>.<capacity>.<claim id>.<sequence>`; the server gives the sequence. A claim that became
lighter (a writer turned reader) has a second node, `=<weight>.<sequence>`, because a node cannot be renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote

from ...core.rule import admitted

_WRAP = 1 << 32


class Place(NamedTuple):
    """One claim in its line."""

    sequence: int
    node: str
    id: str
    weight: int
    capacity: int


def escaped(text: str) -> str:
    """Any text as the name of a node: no slash, no control character, never `.` or `..`."""
    return quote(text, safe="").replace(".", "%2E")


def unescaped(node: str) -> str:
    """The text again."""
    return unquote(node)


def node_name(weight: int, capacity: int, claim_id: str) -> str:
    """What the server appends the sequence number to."""
    return f"{weight}.{capacity}.{escaped(claim_id)}."


def lighter_name(place: Place, weight: int) -> str:
    """The node that says that this claim weighs less now."""
    return f"={weight}.{place.node.rpartition('.')[2]}"


def read_line(children: Iterable[str]) -> list[Place]:
    """The claims in order of arrival; nodes that are none of ours are passed over."""
    line: list[Place] = []
    lighter: dict[str, int] = {}
    for node in children:
        head, _, sequence = node.rpartition(".")
        try:
            if head.startswith("="):
                lighter[sequence] = int(head[1:])
                continue
            weight, capacity, claim_id = head.split(".")
            # The server counts in 32 bits and goes on with negative numbers.
            line.append(Place(int(sequence) % _WRAP, node, unquote(claim_id), int(weight), int(capacity)))
        except ValueError:
            continue
    if lighter:
        line = [
            place._replace(weight=min(place.weight, lighter.get(place.node.rpartition(".")[2], place.weight)))
            for place in line
        ]
    line.sort()
    if len(line) > 1 and line[-1].sequence - line[0].sequence > _WRAP // 2:
        # The count has gone all the way round: the small numbers are the young ones.
        line.sort(key=lambda place: (place.sequence + _WRAP // 2) % _WRAP)
    return line


def position(line: Sequence[Place], claim_id: str) -> int | None:
    """Where the claim stands; None when it does not."""
    return next((at for at, place in enumerate(line) if place.id == claim_id), None)


def decisive(ahead: Sequence[Place], mine: Place) -> list[Place]:
    """The claims to watch: while all of these stay, `mine` cannot hold.

    As few as possible, the heaviest first and the nearest of equals, so that a release wakes only those it concerns: behind
    a lock the one just ahead, behind a semaphore of n the n just ahead, behind a writer the last writer.
    """
    nearest = ahead[-1]
    if nearest.weight + mine.weight > min(nearest.capacity, mine.capacity):
        return [nearest]
    used, room = mine.weight, mine.capacity
    chosen: list[Place] = []
    for place in sorted(ahead, key=lambda place: (place.weight, place.sequence), reverse=True):
        chosen.append(place)
        used += place.weight
        room = min(room, place.capacity)
        if used > room:
            break
    return chosen


__all__ = [
    "Place", "admitted", "decisive", "escaped", "lighter_name", "node_name", "position", "read_line", "unescaped",
]  # fmt: skip
