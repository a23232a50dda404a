"""What a client remembers of requests that were not answered."""

from __future__ import annotations

from typing import Final

DOUBTS_KEPT: Final = 10_000


class Doubts(dict[str, None]):
    """Claims one of whose requests was not answered: it may still be under way when they leave.

    Most leave. What stays is of claims that nobody could withdraw in their lifetime: the newest are enough.
    """

    def add(self, claim_id: str) -> None:
        self[claim_id] = None
        while len(self) > DOUBTS_KEPT:
            self.pop(next(iter(self), ""), None)
