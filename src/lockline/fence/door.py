"""Where marks are kept apart from what they protect: for a door (HTTP, a script) that others are checked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .rule import Mark, Offer


class Door(Protocol):
    """Lets one holder in at a time, the newest only."""

    exact: bool

    def admit(self, resource: str, offer: Offer, *, writes: bool, patience: float) -> Callable[[], None]:
        """Raise the mark and keep all others out until what is returned is called; StaleToken if it may not pass.

        BackendUnavailable if another stayed inside for that long.
        """
        ...

    def admit_at_once(self, resource: str, offer: Offer, *, writes: bool) -> Callable[[], None] | None:
        """The same if it takes no waiting, neither for another nor for a disk or a network; else None."""
        return None

    def look(self, resource: str, lock: str) -> Mark | None:
        """The mark of this lock at the resource."""
        ...

    def close(self) -> None:
        """Close the connections that are not in use."""
        return
