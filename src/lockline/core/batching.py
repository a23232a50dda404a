"""Which claims are renewed together.

A batch has the deadline of its most urgent claim. So claims with little time travel apart from those with much: a lease with a
ttl of 0.8 s must not end the request that renews one of 10 s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from ..runtime import Running
from .live import RENEWALS_PER_TTL, LiveClaim


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
