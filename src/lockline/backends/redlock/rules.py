"""The decisions of the protocol, each one small enough to be right by looking at it (and to be broken on purpose by a test)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from .scripts import LARGEST, LEAP


def majority(nodes: int) -> int:
    """So many that any two such sets share a node."""
    return nodes // 2 + 1


def attempt_id(claim_id: str, number: int) -> str:
    """Never the same twice: a claim's id is unique, and each attempt for it counts on."""
    return f"{claim_id}.{number}"


def agreed(numbers: Mapping[int, int], needed: int) -> int | None:
    """The number under which that many nodes hold the lease. Only that makes a grant: unequal numbers do not add up."""
    if len(numbers) < needed:
        return None
    values = list(numbers.values())
    first = values[0]
    if values.count(first) >= needed:
        return first
    number, count = Counter(values).most_common(1)[0]
    return number if count >= needed else None


def worth_promoting(numbers: Iterable[int], needed: int) -> int:
    """The number that a majority can be lifted to with the fewest requests; nodes above it cannot be lowered."""
    ranked = sorted(numbers)
    return max(ranked[needed - 1 :], key=lambda number: (ranked.count(number), -number))


def left(ttl: float, drift: float, started: float, now: float) -> float:
    """How long a lease may be trusted that was asked for then: nothing that came later counts."""
    return ttl * (1 - drift) - (now - started)


def hint(wall: int, high: int) -> int:
    """A number that is equal for all nodes and, nearly always, above every counter: so they all give it, in one round trip.

    Far above the clock each node would cut it to its own: there, after a restart, the counters themselves are equal.
    """
    above = high + 1
    return min(above if wall < above <= wall + LEAP // 2 else wall, LARGEST)
