"""What a client knows of its own claims beyond what the store says: one object for each."""

from __future__ import annotations

from typing import Final, Literal

DOUBTS_KEPT: Final = 10_000


class OwnClaim:
    """A claim that waits for its turn, or that holds and cannot be told of an eviction; of all others there is nothing to know.

    No `__init__`, because the fast path makes one per acquire.
    """

    state: Literal["waits", "holds"] = "waits"
    token: int | None = None
    """A message has said that it holds; nobody has fetched that yet."""
    look_by: float = 0.0
    """When it has to look again by itself, as long as it waits."""
    key: bytes = b""
    attended: bool = False
    """Whether it held the last time that the keeper came by: short holds shall not cost a subscription."""


class Doubts:
    """Claims one of whose requests was not answered: it may still be under way when they leave.

    Most leave. What stays is of claims that nobody could withdraw in their lifetime: the newest are enough.
    """

    def __init__(self) -> None:
        self._claims: dict[str, None] = {}

    def add(self, claim_id: str) -> None:
        self._claims[claim_id] = None
        while len(self._claims) > DOUBTS_KEPT:
            self._claims.pop(next(iter(self._claims), ""), None)

    def settle(self, claim_id: str) -> None:
        """It has left, and whatever comes late finds that."""
        self._claims.pop(claim_id, None)

    def __contains__(self, claim_id: str) -> bool:
        return claim_id in self._claims

    def __len__(self) -> int:
        return len(self._claims)
