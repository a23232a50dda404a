"""A name that is held for a while, whatever its holder does: the claim outlives its release."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from .backend import Lasting
from .claim import Claim, Gone, Unanswered

if TYPE_CHECKING:
    from .backend import Backend
    from .live import LiveClaim

Renew = Callable[[Sequence[Claim], float], Awaitable[Sequence[Gone | Unanswered | None]]]
"""A backend's `renew`."""


async def let_go(backend: Backend, live: LiveClaim, until: float, **heir: str) -> bool:
    """Remove the claim, or let it end by itself when its time has come; whether it was still there."""
    if live.lock_delay and live.lost is not None:
        # A write of this holder may still be on its way: the next one comes when the store's own time for it is over.
        return False
    if not live.kept_until:
        # Nearly all of them, and who is next waits for this.
        return await backend.leave(live.claim, until, **heir)
    return await end(backend, live.claim, live.outlasts - live.runtime.now(), until, **heir)


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
