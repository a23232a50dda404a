"""The time in which an event loop listens, and the end of the tasks that listen on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ...runtime import clock
from ...runtime.looping import TaskWorker

PULSE = 0.02
"""How often it is looked after what is due, while anything is."""


class Pulse:
    """The time in which a loop listens: what it misses, because it is busy with other tasks, is no server's silence.

    A timer that comes late tells how much that was. It beats only while something is due, and is no task that somebody could cancel.
    """

    def __init__(self, look: Callable[[float], bool]) -> None:
        self._look = look
        self._planned = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.missed = 0.0

    def now(self) -> float:
        """A clock that stands still while the loop does not listen."""
        return clock.now() - self.missed

    def beat(self) -> None:
        """Something is due."""
        if self._timer is None:
            self._planned = clock.now() + PULSE
            self._timer = asyncio.get_running_loop().call_later(PULSE, self._beaten)

    def _beaten(self) -> None:
        self._timer = None
        late = clock.now() - self._planned
        if late > PULSE:
            self.missed += late
        if self._look(self.now()):
            self.beat()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def ended(workers: Sequence[TaskWorker], until: float) -> None:
    """Wait for tasks that were cancelled to put their things away."""
    # A worker may be between two tasks, so there is nothing to await.
    while any(worker.alive() for worker in workers) and clock.now() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
