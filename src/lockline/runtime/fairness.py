"""Other tasks have their turn beside a backend that never has to wait."""

from __future__ import annotations

from . import Runtime

LONGEST_RUN = 0.001
"""How long a task may go on without a pause. Shorter is no fairer to anybody who can tell, and a pause costs 10 µs."""


class Breather:
    """Lets the loop go round now and then.

    A call that is answered at once, in this process, awaits nothing: a task that locks and unlocks in a loop would keep every
    other one from running, timers and cancels included.
    """

    __slots__ = ("_due", "_runtime")

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # On threads the system sees to it.
        self._due = 0.0 if runtime.flavour == "asyncio" else float("inf")

    async def breathe(self) -> None:
        """Give the others a turn, if this one has run for long."""
        if self._runtime.now() >= self._due:
            self._due = self._runtime.now() + LONGEST_RUN
            await self._runtime.sleep(0)
