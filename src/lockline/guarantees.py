"""What a backend promises, as a value that code can read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Exclusion = Literal["process", "machine", "server", "majority", "consensus"]
Survives = Literal["release", "expiry", "restart", "failover", "wipe"]


@dataclass(frozen=True, slots=True)
class Guarantees:
    """How far exclusion, order, wake-up and tokens reach on one backend."""

    exclusion: Exclusion
    """Who can be kept apart, and what has to stay alive for it."""
    fifo: bool
    """Claims hold strictly in the order in which they arrived."""
    push: bool
    """A waiter is told of its turn; it does not poll."""
    token_survives: frozenset[Survives]
    """After which events tokens are still higher than all before."""
    tolerates: str
    """One sentence: what may fail without two holders, and what may not."""
