"""The one rule: a claim holds when the weight ahead of it in the line leaves room for its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Protocol, TypeVar


class Weighty(Protocol):
    """Anything with a weight and a capacity."""

    @property
    def weight(self) -> int: ...
    @property
    def capacity(self) -> int: ...


W = TypeVar("W", bound=Weighty)


class Tally:
    """The rule, one claim after the other.

    Where claims on one name disagree about the capacity (a limit that is being changed, a lock and a
    semaphore that share a name), the smallest one inside decides: never more holders than anybody there allows.
    """

    __slots__ = ("_room", "_used")

    def __init__(self) -> None:
        self._used = 0
        self._room: int | None = None

    def admits(self, claim: Weighty) -> bool:
        """Whether this one, next in the line, holds too. After the first no, nobody is asked any more."""
        self._room = claim.capacity if self._room is None else min(self._room, claim.capacity)
        self._used += claim.weight
        return self._used <= self._room


def admitted(line: Iterable[Weighty]) -> int:
    """How many claims at the head of the line hold: the holders are always its first ones, so nobody overtakes."""
    return len(holders(line))


def holders(line: Iterable[W]) -> list[W]:
    """Those at the head of the line that hold; nobody further back is looked at."""
    return list(takewhile(Tally().admits, line))


def blockers(ahead: Sequence[W], claim: Weighty) -> list[W]:
    """Whom to watch: while all of these stand as they are, the claim cannot hold; empty if it has room.

    As few as there can be, so that an end wakes only those it concerns: behind a lock the one just ahead, behind a semaphore of
    n the n just ahead, for a reader the last writer, however many readers stand between. Weights only ever go down, so
    whoever else leaves or becomes lighter makes no room; one of these that becomes lighter (a writer who turned reader) may.
    """
    if not ahead:
        return []
    room = claim.capacity - claim.weight
    for one in reversed(ahead):
        if one.weight > min(room, one.capacity - claim.weight):
            return [one]
    fewest: list[W] = []
    # The nearest first among equals: whoever stands further ahead ends sooner, and would wake us for nothing.
    heaviest = sorted(ahead, key=attrgetter("weight"))[::-1]
    for capacity in {claim.capacity, *(one.capacity for one in ahead if one.capacity < claim.capacity)}:
        chosen = _outweigh(heaviest, capacity, capacity - claim.weight, claim.capacity > capacity)
        if chosen and (not fewest or len(chosen) < len(fewest)):
            fewest = chosen
    return fewest


def _outweigh(heaviest: list[W], capacity: int, room: int, limited: bool) -> list[W]:
    """The fewest who take more than this room; if it is one of them who limits it so, with the heaviest of such."""
    limit = next((one for one in heaviest if one.capacity <= capacity), None) if limited else None
    chosen = [] if limit is None else [limit]
    used = 0 if limit is None else limit.weight
    for one in heaviest:
        if used > room:
            return chosen
        if one is not limit:
            chosen.append(one)
            used += one.weight
    return chosen if used > room else []
