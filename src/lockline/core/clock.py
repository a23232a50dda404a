"""The clock that leases run on: it neither steps nor stops while the machine sleeps."""

from __future__ import annotations

import time

_CLOCK_ID: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

DRIFT = 0.01
"""The share of a ttl that is given away for clocks that run at different speeds."""


def now(clock_gettime=time.clock_gettime, clock_id: int = _CLOCK_ID) -> float:  # type: ignore[no-untyped-def]
    """Seconds since the machine started, time asleep included."""
    return clock_gettime(clock_id)  # type: ignore[no-any-return]


def validity(ttl: float) -> float:
    """How long a holder may trust a ttl, counted from before its request was sent."""
    return ttl * (1 - DRIFT)
