"""One who stands in no line and wants to know who leads, for the stories about that."""

from __future__ import annotations

from typing import Final

import lockline

from .parties import Party, Pending

SELDOM: Final = 3600
"""Where it is looked at that often only, whatever is seen was told."""


class Watcher:
    """One who watches, and waits for the next change in the background."""

    def __init__(self, party: Party, every: float = SELDOM) -> None:
        self.party = party
        self.changes = party.client.real.watch("boss", every=every)

    def next(self) -> Pending:
        return self.party.begin(
            lambda: next(self.changes) if hasattr(self.changes, "__next__") else anext(self.changes)
        )

    def stop(self) -> None:
        self.party.begin(self.changes.close if hasattr(self.changes, "close") else self.changes.aclose).result()


def sees_by_looking(client: lockline.Client, other: lockline.Client, name: str) -> None:
    """Nobody tells the other one, who sees all the same who leads, and when nobody does."""
    changes = other.watch(name, every=0.05)
    assert next(changes) is None
    with client.lock(name) as lease:
        told = next(changes)
        assert told is not None
        assert told.token == lease.token
    assert next(changes) is None
