"""Which claims are renewed together, and how many travel in one request.

A batch has the deadline of its most urgent claim. So claims with little time travel apart from those with much: a lease with a
ttl of 0.8 s must not end the request that renews one of 10 s.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from ..runtime import Running
from .live import RENEWALS_PER_TTL, LiveClaim

T = TypeVar("T")


class SizedBatches(Generic[T]):
    """What one request may carry, by number and by bytes. A batch that a store refuses as too large comes again in two halves."""

    def __init__(self, items: Iterable[T], size: Callable[[T], int], *, most: int, most_bytes: int) -> None:
        self._left: deque[list[T]] = deque()
        filled = 0
        for item in items:
            filled += (taken := size(item))
            if not self._left or len(self._left[-1]) == most or filled > most_bytes:
                self._left.append([])
                filled = taken
            self._left[-1].append(item)

    def __iter__(self) -> Iterator[list[T]]:
        while self._left:
            yield self._left.popleft()

    def halve(self, batch: list[T]) -> bool:
        """Have this one again, as two; False for a single item, which nothing makes smaller."""
        half = len(batch) // 2
        if half:
            self._left.extendleft([batch[half:], batch[:half]])
        return half > 0

    def rest(self) -> list[T]:
        """All that has not been taken yet."""
        return [item for batch in self._left for item in batch]


class Renewal(NamedTuple):
    """A renewal that was begun: who does it, and the claims that it has not done with yet."""

    worker: Running
    asked: set[str]
    size: int
    """The order of magnitude of the time that its claims have (`by_time`)."""


def time_to_renew(live: LiveClaim, now: float) -> float:
    """Seconds for one renewal of this claim: until its deadline, or until the next renewal would be due."""
    return min(live.deadline - now, live.claim.ttl / RENEWALS_PER_TTL)


def by_time(claims: Iterable[LiveClaim], now: float) -> dict[int, list[LiveClaim]]:
    """The claims in batches whose times for a renewal differ by less than a factor of two, each with its order of magnitude."""
    batches: dict[int, list[LiveClaim]] = {}
    for live in claims:
        batches.setdefault(math.frexp(time_to_renew(live, now))[1], []).append(live)
    return batches
