"""What is kept beside a line on stores that run no code of ours: its text, and who sees to it that nothing stays for ever."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

T = TypeVar("T")

SWEEPERS: Final = 0.1
"""The share of those who write that look for what is over, where the store does not do that by itself."""
SWEPT: Final = 20
"""How many values such a one looks at. So two are looked at for each that is written, and what is over never becomes more than what is not."""
A_SWEEP: Final = 1.0
"""Seconds that a sweep may take of a caller's time."""


class KeptText(NamedTuple):
    """A value as it lies in the store."""

    token: int
    """Under which it was written."""
    ttl: float
    """For how long it is kept."""
    written: float
    """When it was written, at the earliest; 0 where the store itself knows."""
    slack: float
    """So much sooner it counts as over, for all alike: so uncertain may those be who look at it."""
    value: bytes

    def packed(self) -> bytes:
        """As it is put into the store: a line about it, and the value as it is."""
        return json.dumps([self.token, self.ttl, self.written, self.slack]).encode() + b"\n" + self.value


def unpacked(data: bytes) -> KeptText | None:
    """What `packed` wrote; None for anything else that somebody has put there."""
    head, found, value = data.partition(b"\n")
    try:
        token, ttl, written, slack = json.loads(head)
        sound = type(token) is int and all(map(math.isfinite, (ttl, written, slack))) and ttl > 0
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    return KeptText(token, float(ttl), float(written), float(slack), value) if found and sound else None


def to_sweep(there: Sequence[T]) -> Sequence[T]:
    """Those that one who sweeps looks at."""
    return random.sample(there, min(SWEPT, len(there)))


def sweeps() -> bool:
    """Whether it is this one who sweeps."""
    return random.random() < SWEEPERS
