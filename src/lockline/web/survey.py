"""One look at every line of a store, as cheap as the store allows and never more than a share of its time."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..core.backend import LookingAtMany
from ..core.claim import Line
from ..core.engine import Engine
from ..errors import BackendUnavailable

EVERY: Final = 0.5
"""Seconds between two looks: what happens is on the screen within a second, the way there included, wherever between two it fell."""
MOST_LINES: Final = 5000
"""So many are shown; a page with more is of no use to anybody."""
BUDGET: Final = 0.25
"""Seconds of one look that go into single questions, where a store cannot show many lines at once."""
LISTING_SHARE: Final = 10
"""A list that took a while is asked for again ten times as long after: on some stores it passes over foreign keys too."""
FIRST_ASKED: Final = 50
"""The longest lines are looked at each time, even where there is no time for all."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look saw: the lines that it looked at, and which names there are."""

    lines: Mapping[str, Line]
    names: frozenset[str]
    total: int
    """How many names there are, also those that are not looked at because there are too many."""
    took: float
    """Seconds that it took."""
    unreadable: int = 0
    """How many entries could not be read; they are left out."""


class Survey:
    """Looks at all lines of one store, again and again."""

    def __init__(self, engine: Engine, prefix: str = "") -> None:
        self._engine = engine
        self._prefix = prefix
        self._names: list[str] = []
        self._total = 0
        self._list_at = 0.0
        self._looked: dict[str, float] = {}
        """When each was last looked at, where it is a question each."""
        self._lengths: dict[str, int] = {}

    async def look(self) -> Seen:
        """What the store shows now; BackendUnavailable where it does not answer."""
        now = self._engine.runtime.now
        began = now()
        if began >= self._list_at:
            names = await self._engine.ask(lambda until: self._engine.backend.list(self._prefix, until))
            self._list_at = now() + LISTING_SHARE * (now() - began)
            self._total, self._names = len(names), self._chosen(names)
        backend = self._engine.backend
        if isinstance(backend, LookingAtMany):
            found = await self._engine.ask(lambda until: backend.look_many(self._names, until))
            lines = {line.name: line for line in found}
            unreadable = len(self._names) - len(lines)
        else:
            lines, unreadable = await self._ask_each(BUDGET)
        self._lengths = {**self._lengths, **{name: len(line.claims) for name, line in lines.items()}}
        return Seen(lines, frozenset(self._names), self._total, now() - began, unreadable)

    def _chosen(self, names: list[str]) -> list[str]:
        there = set(names)
        self._looked = {name: at for name, at in self._looked.items() if name in there}
        self._lengths = {name: length for name, length in self._lengths.items() if name in there}
        if len(names) <= MOST_LINES:
            return names
        return sorted(names, key=lambda name: -self._lengths.get(name, 0))[:MOST_LINES]

    async def _ask_each(self, budget: float) -> tuple[dict[str, Line], int]:
        """The longest lines first, for half of the time; then those that were not looked at for the longest time. And how many
        could not be read.
        """
        now = self._engine.runtime.now
        began = now()
        longest = sorted(self._names, key=lambda name: -self._lengths.get(name, 0))[:FIRST_ASKED]
        stalest = sorted(self._names, key=lambda name: self._looked.get(name, 0.0))
        lines: dict[str, Line] = {}
        spoilt: dict[str, BackendUnavailable] = {}
        for names, until in ((longest, began + budget / 2), (stalest, began + budget)):
            for name in names:
                if now() >= until:
                    break
                if name not in lines and name not in spoilt:
                    try:
                        lines[name] = await self._engine.ask(functools.partial(self._engine.backend.look, name))
                    except BackendUnavailable as problem:
                        if not problem.permanent:
                            raise
                        spoilt[name] = problem
                    self._looked[name] = now()
        if spoilt and not lines:
            raise next(iter(spoilt.values()))
        return lines, len(spoilt)


def rest_after(took: float) -> float:
    """Seconds until the next look: half a second between two, and never more than half of the time spent with looking."""
    return max(EVERY - took, took)
