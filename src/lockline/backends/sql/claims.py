"""The claims of this client: what it knows of each beyond what the database says."""

from __future__ import annotations

from typing import Final, Literal

DOUBTS_KEPT: Final = 10_000


class OwnClaim:
    """A claim that waits for its turn, or that holds and cannot be told of an eviction; of all others there is nothing to know."""

    __slots__ = ("attended", "look_by", "state", "token")

    def __init__(self, state: Literal["waits", "holds"]) -> None:
        self.state = state
        self.token: int | None = None
        """A push has said that it holds; nobody has fetched that yet."""
        self.look_by = 0.0
        self.attended = False
        """Whether it held the last time that the keeper came by: short holds shall not cost a connection."""


class Doubts(dict[str, None]):
    """Claims one of whose requests was not answered: it may still be under way when they leave.

    Most leave. What stays is of claims that nobody could withdraw in their lifetime: the newest are enough.
    """

    def add(self, claim_id: str) -> None:
        self[claim_id] = None
        while len(self) > DOUBTS_KEPT:
            self.pop(next(iter(self), ""), None)
