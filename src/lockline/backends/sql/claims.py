"""The claims of this client: what it knows of each beyond what the database says."""

from __future__ import annotations

from typing import Literal


class SqlClaim:
    """A claim that waits for its turn, or that holds and cannot be told of an eviction; of all others there is nothing to know."""

    __slots__ = ("attended", "behind", "heard", "look_by", "state", "token")

    def __init__(self, state: Literal["waits", "holds"]) -> None:
        self.state = state
        self.token: int | None = None
        """A push has said that it holds; nobody has fetched that yet."""
        self.look_by = 0.0
        self.heard = False
        """Whether the database knows where it listens, as long as it waits."""
        self.behind = ""
        """Who stood directly ahead of it when it last looked."""
        self.attended = False
        """Whether it held the last time that the keeper came by: short holds shall not cost a connection."""
