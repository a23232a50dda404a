"""Those who sleep on one loop, each until a moment of its own: one timer of the loop for all of them."""

from __future__ import annotations

import asyncio
import itertools
from heapq import heapify, heappop, heappush

from . import clock

LONGEST = 60.0
"""Seconds between two looks at our own clock: the loop's clock stops in suspend."""
LATE = 1.0
"""Seconds after which one that has not rung is set anew by whoever comes next: an exception may have struck the loop's thread just then."""
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

    def wake(self, sleeper: asyncio.Future[None], at: float, now: float) -> None:
        """Settle it at that moment, if nobody has by then."""
        sleepers = self._sleepers
        heappush(sleepers, (at, next(self._numbers), sleeper))
        if len(sleepers) > self._many:
            asleep = [each for each in sleepers if not each[2].done()]
            heapify(asleep)
            # In one instruction, and in order: else one that is due could lie behind one that is not.
            sleepers[:] = asleep
            # Twice as many as sleep: so nobody is looked through for more than once for each who came.
            self._many = max(FEW, 2 * len(sleepers))
        if at < self._rings_at or self._rings_at < now - LATE:
            self._set(sleepers[0][0], now)

    def _set(self, at: float, now: float) -> None:
        before = self._timer
        # First the new one: struck in between, there are two, and whoever sleeps is woken.
        self._timer = self.loop.call_later(min(max(0.0, at - now), LONGEST), self._ring)
        self._rings_at = at
        if before is not None:
            before.cancel()

    def _ring(self) -> None:
        sleepers, now = self._sleepers, clock.now()
        try:
            while sleepers and (sleepers[0][0] <= now or sleepers[0][2].done()):
                settle(sleepers[0][2])
                heappop(sleepers)
            self._timer, self._rings_at = None, float("inf")
            if sleepers:
                self._set(sleepers[0][0], now)
        except BaseException:
            self._set(now, now)
            raise


def settle(sleeper: asyncio.Future[None]) -> None:
    """Wake it, if it sleeps."""
    if not sleeper.done():
        sleeper.set_result(None)
