"""A caller's place in the line: what it is told of it while it waits, and the line that is too long for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ..errors import LineFull
from .claim import Claim, Gone, Grant, Line, Standing, Waiting
from .rule import admitted
from .terms import Terms

if TYPE_CHECKING:
    from .backend import Backend
    from .live import LiveClaim

TOLD_EVERY: Final = 1.0
"""How old the place may be that a caller was told: nothing is pushed to one who only moves up."""

Place = Callable[[Claim, float], Awaitable[Grant | Waiting | Gone]]


async def minded(
    terms: Terms, backend: Backend, live: LiveClaim, stands: Waiting, until: float
) -> tuple[Place, Waiting]:
    """How to ask where the claim stands, and when first, so that its caller hears of it; LineFull if too many are ahead."""
    if terms.max_waiting is not None and stands.ahead > terms.max_waiting:
        waiting = sum(1 for one in await _ahead(backend, live.claim, until) or () if not one.holds)
        # By its place: whoever is within the bound stays so whatever comes behind it; of two at once the later one goes.
        if waiting >= terms.max_waiting:
            raise LineFull(live.claim.name, waiting=waiting, most=terms.max_waiting)
    if terms.on_wait is None:
        return backend.place, stands
    watcher = _Watcher(terms.on_wait, backend, live)
    await watcher.tell(stands, until)
    return watcher.place, _soon(stands, live.runtime.now())


async def _ahead(backend: Backend, claim: Claim, until: float) -> tuple[Standing, ...] | None:
    """Who stands before the claim; None where it stands in no line."""
    claims = (await backend.look(claim.name, until)).claims
    ids = [standing.id for standing in claims]
    return claims[: ids.index(claim.id)] if claim.id in ids else None


class _Watcher:
    """Asks where a claim stands, and tells its caller each time that another number is ahead of it.

    By a look at the line: what a backend answers to `place` may count only those whom it has to watch.
    """

    def __init__(self, on_wait: Callable[[int], object], backend: Backend, live: LiveClaim) -> None:
        self._on_wait = on_wait
        self._backend = backend
        self._now = live.runtime.now
        self._claim = live.claim
        self._told: int | None = None

    async def tell(self, stands: Waiting, until: float) -> None:
        ahead = await _ahead(self._backend, self._claim, until)
        number = stands.ahead if ahead is None else len(ahead)
        if number != self._told:
            self._told = number
            self._on_wait(number)

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        answer = await self._backend.place(claim, until)
        if not isinstance(answer, Waiting):
            return answer
        await self.tell(answer, until)
        return _soon(answer, self._now())


def _soon(stands: Waiting, now: float) -> Waiting:
    return stands._replace(look_by=min(stands.look_by, now + TOLD_EVERY))


def is_full(line: Line, terms: Terms) -> bool:
    """Whether one more who asked for this would have to wait now."""
    return admitted([*line.claims, terms]) <= len(line.claims)
