"""A caller's place in the line: what it is told of it while it waits, and the line that is too long for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ..errors import LineFull
from .claim import Claim, Gone, Grant, Line, Waiting
from .glances import FRESH
from .rule import admitted
from .terms import Terms

if TYPE_CHECKING:
    from .backend import Backend
    from .glances import Glances
    from .live import LiveClaim

TOLD_EVERY: Final = 1.0
"""How old the place may be that a caller was told: nothing is pushed to one who only moves up."""

Place = Callable[[Claim, float], Awaitable[Grant | Waiting | Gone]]


async def minded(
    terms: Terms, glances: Glances, backend: Backend, live: LiveClaim, stands: Waiting, until: float
) -> tuple[Place, Waiting]:
    """How to ask where the claim stands, and when first, so that its caller hears of it; LineFull if too many are ahead."""
    if terms.max_waiting is not None and stands.ahead > terms.max_waiting:
        seen = await glances.of(backend, live.claim, until)
        # By its place: whoever is within the bound stays so whatever comes behind it; of two at once the later one goes.
        waiting = seen.places.get(live.claim.id, 0) - seen.holding
        if waiting >= terms.max_waiting:
            raise LineFull(live.claim.name, waiting=waiting, most=terms.max_waiting)
    if terms.on_wait is None:
        return backend.place, stands
    watcher = _Watcher(terms.on_wait, glances, backend, live)
    return watcher.place, await watcher.tell(stands, until)


class _Watcher:
    """Asks where a claim stands, and tells its caller each time that another number is ahead of it.

    By a look at the line: what a backend answers to `place` may count only those whom it has to watch.
    """

    def __init__(self, on_wait: Callable[[int], object], glances: Glances, backend: Backend, live: LiveClaim) -> None:
        self._on_wait = on_wait
        self._glances = glances
        self._backend = backend
        self._now = live.runtime.now
        self._claim = live.claim
        self._told: int | None = None

    async def tell(self, stands: Waiting, until: float) -> Waiting:
        """Tell it, and when to look again."""
        asked = self._now()
        seen = await self._glances.of(self._backend, self._claim, until)
        number = seen.places.get(self._claim.id, stands.ahead)
        if number != self._told:
            self._told = number
            self._on_wait(number)
        # What somebody else saw a moment ago may not be what this one was to find.
        again = TOLD_EVERY if seen.asked >= asked else FRESH
        return stands._replace(look_by=min(stands.look_by, self._now() + again))

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        answer = await self._backend.place(claim, until)
        return await self.tell(answer, until) if isinstance(answer, Waiting) else answer


def is_full(line: Line, terms: Terms) -> bool:
    """Whether one more who asked for this would have to wait now."""
    return admitted([*line.claims, terms]) <= len(line.claims)
