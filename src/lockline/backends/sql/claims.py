"""The claims of this client: what it knows of each beyond what the database says."""

from __future__ import annotations

from typing import Literal


class SqlClaim:
    """A claim that waits for its turn, or that holds and cannot be told of an eviction; of all others there is nothing to know."""

    __slots__ = ("alone", "attended", "follower", "heard", "look_by", "state")

    def __init__(self, state: Literal["waits", "holds"], alone: bool = True) -> None:
        self.state = state
        self.alone = alone
        """Whether it holds only when nobody else does."""
        self.look_by = 0.0
        self.heard = False
        """Whether the database knows where it listens, as long as it waits."""
        self.follower = ""
        """Who of ours was the last to be told that it stands directly behind this one."""
        self.attended = False
        """Whether it held the last time that the keeper came by: short holds shall not cost a connection."""
