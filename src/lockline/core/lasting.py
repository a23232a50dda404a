"""A name that is held for a while, whatever its holder does: the claim outlives its release."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from .backend import Lasting
from .claim import Claim, Gone, Unanswered
from .succession import named

if TYPE_CHECKING:
    from .backend import Backend
    from .live import LiveClaim

Renew = Callable[[Sequence[Claim], float], Awaitable[Sequence[Gone | Unanswered | None]]]
"""A backend's `renew`."""


def let_go(backend: Backend, live: LiveClaim, until: float, heir: LiveClaim | None) -> Awaitable[bool]:
    """Remove the claim, or let it end by itself when its time has come; whether it was still there."""
    if not (live.kept_until or live.lock_delay or heir):
        # Nearly all of them, and who is next waits for this.
        return backend.leave(live.claim, until)
    if live.lock_delay and live.lost is not None:
        return _leave_standing()
    return end(backend, live.claim, live.outlasts - live.runtime.now(), until, **named(heir))


async def _leave_standing() -> bool:
    # A write of this holder may still be on its way: the next one comes when the store's own time for it is over.
    return False


async def end(backend: Backend, claim: Claim, left: float, until: float, **heir: str) -> bool:
    """Remove this claim, or let it end by itself if it is kept for so much longer; whether it was still there. May be repeated."""
    if left > 0 and isinstance(backend, Lasting):
        return await backend.last(claim, left, until)
    return await backend.leave(claim, until, **heir)


async def renew_for(renew: Renew, claim: Claim, ttl: float, until: float) -> bool:
    """What `last` is where a claim ends by nothing but its ttl: one more renewal, of that length; whether it was still there."""
    (fate,) = await renew([claim._replace(ttl=ttl)], until)
    if isinstance(fate, Unanswered):
        raise fate.problem
    return fate is None
