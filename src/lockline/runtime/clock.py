"""The clock that leases run on: it neither steps nor stops while the machine sleeps."""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Callable
from typing import Final

_CLOCK_ID: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

DRIFT = 0.01
"""The share of a ttl that is given away for clocks that run at different speeds."""
TRUSTED = 1 - DRIFT
"""The share for which a holder may trust it, counted from before its request was sent."""


now: Final[Callable[[], float]] = functools.partial(time.clock_gettime, _CLOCK_ID)
"""Seconds since the machine started, time asleep included. No function of ours: this is asked many times per grant."""


def validity(ttl: float) -> float:
    """How long a holder may trust a ttl, counted from before its request was sent."""
    return ttl * TRUSTED


def clock_time(moment: float) -> str:
    """A moment of the wall clock, for people."""
    return time.strftime("%H:%M:%S", time.localtime(moment))


def who() -> str:
    """This process, for people: its machine and its number."""
    return f"{socket.gethostname()}:{os.getpid()}"
