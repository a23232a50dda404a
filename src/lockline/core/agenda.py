"""When the keeper has to go through all that it keeps: a client with 100,000 leases cannot look at each of them twice a second."""

from __future__ import annotations

from collections import deque
from typing import Final

MANY: Final = 25_000
"""Up to so many claims each visit goes through all of them."""
REST_PER_CLAIM: Final = 20e-6
"""How long it rests after a round through more than that, for each of them: a look at one takes a tenth of it, and so does the share of a
core that all these looks may have."""
AT_A_TIME: Final = 1000
"""After so many of them others have their turn: a round may take longer than a loop can be left alone."""


class Agenda:
    """Knows the next moment at which something is due, so that nobody has to look at everything to find out.

    What comes between two rounds is noted, by whatever thread; what only a look can find (a claim that nobody answers for any more)
    waits for the next round, which is never far.
    """

    def __init__(self) -> None:
        self._soonest = 0.0
        self._rests_until = 0.0
        self._news: deque[float] = deque()
        self.rests = False
        """Whether some visits go without a round, so that news have to be noted."""

    def note(self, moment: float) -> None:
        """Something that no round has seen is due then."""
        if self.rests:
            self._news.append(moment)

    def round_is_due(self, now: float) -> bool:
        """Whether everything has to be looked at now."""
        while self._news:
            self._soonest = min(self._soonest, self._news.popleft())
        return now >= self._rests_until or now >= self._soonest

    def begin_round(self, now: float, count: int) -> None:
        """Everything is looked at, and it is so much: to be said before it is known what that is, so that nothing falls between."""
        self.rests = count > MANY
        self._rests_until = now + count * REST_PER_CLAIM if self.rests else 0.0

    def end_round(self, soonest: float) -> None:
        """That was all, and the first of it is due then."""
        self._soonest = soonest

    def next(self, latest: float) -> float:
        """When to come again, at that moment at the latest."""
        return min(self._soonest, latest)
