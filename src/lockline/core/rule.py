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


def admitted(line: Iterable[Weighty]) -> int:
    """How many claims at the head of the line hold: the holders are always its first ones.

    Where claims on one name disagree about the capacity (a limit that is being changed, a lock and a
    semaphore that share a name), the smallest one inside decides: never more holders than anybody there allows.
    The first that does not fit ends the walk, so nobody overtakes.
    """
    used, room, count = 0, None, 0
    for claim in line:
        room = claim.capacity if room is None else min(room, claim.capacity)
        used += claim.weight
        if used > room:
            break
        count += 1
    return count
