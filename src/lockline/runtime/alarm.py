"""Those who sleep on one loop, each until a moment of its own: one timer of the loop for all of them."""

from __future__ import annotations

import asyncio
import itertools
from heapq import heapify, heappop, heappush

from . import clock

LONGEST = 60.0
"""Seconds between two looks at our own clock: the loop's clock stops in suspend."""
FEW = 64
"""Sleepers that nobody looks through for those who are awake by now."""


class Alarm:
    """Wakes whoever still sleeps when his time is over.

    Most are woken long before, by what they wait for; a timer of the loop for each would cost more than the rest of the wait.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._many = FEW
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = float("inf")

    def wake(self, sleeper: asyncio.Future[None], at: float) -> None:
        """Settle it at that moment, if nobody has by then."""
        sleepers = self._sleepers
        heappush(sleepers, (at, next(self._numbers), sleeper))
        if len(sleepers) > self._many:
            sleepers[:] = [each for each in sleepers if not each[2].done()]
            heapify(sleepers)
            # Twice as many as sleep: so nobody is looked through for more than once for each who came.
            self._many = max(FEW, 2 * len(sleepers))
        if at < self._rings_at:
            self._set(at)

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = at
        self._timer = self.loop.call_later(min(max(0.0, at - clock.now()), LONGEST), self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, float("inf")
        sleepers, now = self._sleepers, clock.now()
        while sleepers and (sleepers[0][0] <= now or sleepers[0][2].done()):
            settle(heappop(sleepers)[2])
        if sleepers:
            self._set(sleepers[0][0])


def settle(sleeper: asyncio.Future[None]) -> None:
    """Wake it, if it sleeps."""
    if not sleeper.done():
        sleeper.set_result(None)
