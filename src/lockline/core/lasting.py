"""A name that is held for a while, whatever its holder does: the claim outlives its release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .backend import Lasting

if TYPE_CHECKING:
    from .backend import Backend
    from .live import LiveClaim


async def let_go(backend: Backend, live: LiveClaim, until: float, **heir: str) -> bool:
    """Remove the claim, or let it end by itself when its time has come; whether it was still there."""
    if live.lock_delay and live.lost is not None:
        # A write of this holder may still be on its way: the next one comes when the store's own time for it is over.
        return False
    if live.kept_until:
        left = live.kept_until - live.runtime.now()
        if left > 0 and live.lost is None and isinstance(backend, Lasting):
            return await backend.last(live.claim, left, until)
    return await backend.leave(live.claim, until, **heir)
