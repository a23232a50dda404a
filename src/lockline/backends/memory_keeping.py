"""What is kept beside the lines of a room of `memory:`, written under the token."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from ..core.claim import Record


class Marked(NamedTuple):
    """What is kept beside a line: the highest token that was there, for how long that is remembered, and the value."""

    mark: int
    until: float
    kept: Record


NOTHING: Final = Marked(0, 0.0, Record(0.0))
SWEEP_FROM: Final = 1000
"""So many values are kept before those whose time is over are looked for."""


class Keeps:
    """By name, and by what it is. Used in one step at a time."""

    def __init__(self) -> None:
        self._keeps: dict[tuple[str, str], Marked] = {}
        self._sweep_at = SWEEP_FROM

    def kept(self, name: str, what: str, token: int, ttl: float) -> Record:
        """What is there; nobody with a lower token writes from now on."""
        now = time.time()
        found = self._found(name, what, now)
        if token > found.mark:
            self._keeps[name, what] = found._replace(mark=token, until=max(found.until, now + ttl))
        return found.kept._replace(now=now) if found.kept.expires > now else Record(now)

    def keep(self, name: str, what: str, value: bytes, token: int, ttl: float) -> bool:
        """Keep it, if no higher token was there."""
        now = time.time()
        found = self._found(name, what, now)
        if found.mark > token:
            return False
        if len(self._keeps) >= self._sweep_at:
            self._keeps = {key: marked for key, marked in self._keeps.items() if marked.until > now}
            # As many again first: else each would pay for all who stay.
            self._sweep_at = max(SWEEP_FROM, 2 * len(self._keeps))
        kept = Record(now, value, token, now, now + ttl)
        self._keeps[name, what] = Marked(token, max(found.until, now + ttl), kept)
        return True

    def _found(self, name: str, what: str, now: float) -> Marked:
        found = self._keeps.get((name, what), NOTHING)
        return found if found.until > now else NOTHING
