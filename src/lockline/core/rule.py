"""The one rule: a claim holds when the weight ahead of it in the line leaves room for its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Weighty(Protocol):
    """Anything with a weight and a capacity."""

    @property
    def weight(self) -> int: ...
    @property
    def capacity(self) -> int: ...


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
    tally, count = Tally(), 0
    for claim in line:
        if not tally.admits(claim):
            break
        count += 1
    return count
