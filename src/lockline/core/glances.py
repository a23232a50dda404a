"""One look at a line for all of a client who want to know in the same moment who stands in it.

A look shows the whole line. Where each of a thousand whose time is over looks for itself, a thousand lines of a thousand are read, and
the client does nothing else for half a minute: what it holds elsewhere is lost meanwhile.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from .claim import Claim, Standing

if TYPE_CHECKING:
    from ..runtime import Runtime
    from .backend import Backend

FRESH: Final = 0.1
"""Seconds for which a look speaks for others whom it saw as well."""
TOLD: Final = 3
"""Holders that somebody is told of."""


class Glance:
    """A line as it stood after `asked`; empty until it was seen."""

    def __init__(self, runtime: Runtime) -> None:
        self.asked = runtime.now()
        self.over = runtime.signal()
        self.holders: tuple[Standing, ...] = ()
        """The first few of those who hold."""
        self.holding = 0
        self.places: dict[str, int] = {}
        """How many stood before each, by its id."""
        self.seen = False

    async def look(self, backend: Backend, name: str, until: float) -> None:
        """See the line."""
        try:
            line = await backend.look(name, until)
            holders = line.holders
            self.holders, self.holding = holders[:TOLD], len(holders)
            self.places = {standing.id: at for at, standing in enumerate(line.claims)}
            self.seen = True
        finally:
            # Also where nothing was seen: whoever waits for it looks for itself then.
            self.over.set()


class Glances:
    """The last looks of one client."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._last: dict[str, Glance] = {}

    async def of(self, backend: Backend, claim: Claim, until: float) -> Glance:
        """The claim's line as it stands now, or as it stood a moment ago with this claim in it."""
        name, began = claim.name, self._runtime.now()
        while (last := self._last.get(name)) is not None and last.asked + FRESH > self._runtime.now():
            # One that does not end in time may have been cut off from its end.
            if not last.over.is_set() and not await last.over.wait(until):
                break
            # Also where this one does not stand in it any more: as good as a look of its own.
            if claim.id in last.places or (last.seen and last.asked >= began):
                return last
            # It could not see this one yet, or saw nothing at all; of those who waited for it, the first looks again for the others.
            if self._last.get(name) is last:
                break
        glance = Glance(self._runtime)
        # In the order of their age, so that the oldest are found at once; two go for each that comes.
        self._last.pop(name, None)
        self._last[name] = glance
        for other in list(islice(self._last, 2)):
            old = self._last.get(other)
            if old is not None and old.asked + FRESH <= glance.asked:
                self._last.pop(other, None)
        await glance.look(backend, name, until)
        return glance
