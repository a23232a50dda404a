"""Who asks again for what it holds: what it may share, and where it would wait for itself."""

from __future__ import annotations

from ..errors import WouldDeadlock
from .live import LiveClaim
from .terms import Terms


def held_already(terms: Terms, mine: list[LiveClaim]) -> LiveClaim | None:
    """The claim of this very thread or task that the ask may share."""
    for live in mine:
        kind = live.claim.kind
        shares = (
            terms.kind == kind == "rlock"
            or (terms.kind == "read" and kind in ("read", "write"))
            or (terms.kind == kind == "write")
        )
        if shares and live.remaining() > 0:
            return live
    return None


def would_wait_for_itself(terms: Terms, mine: list[LiveClaim]) -> bool:
    """Whether a claim of this thread or task stands in the way of what it asks for now."""
    if terms.kind == "permit":
        return False
    return any(live.claim.kind != "permit" and live.remaining() > 0 for live in mine)


def deadlock_error(terms: Terms, mine: list[LiveClaim]) -> WouldDeadlock:
    """What such a one is told."""
    kinds = {live.claim.kind for live in mine}
    if terms.kind == "write" and "read" in kinds:
        cure = "a reader cannot become a writer; take the write lock first and downgrade it"
    else:
        cure = "use client.rlock(name) where the same thread or task may ask again"
    return WouldDeadlock(f"this thread or task holds {terms.name!r} already and would wait for itself; {cure}")


def refuse_to_wait_for_a_waiter(live: LiveClaim, holder: LiveClaim) -> None:
    """WouldDeadlock where the holder, of this client, is a task that waits for this very one to end."""
    if holder.remaining() <= 0 or not live.runtime.waits_for(holder.me, live.me):
        return
    raise WouldDeadlock(
        f"{live.claim.name!r} is held by a task that waits for this one; asyncio.wait_for before Python 3.12, gather and "
        "task groups run what they are given as another task: use acquire(timeout=...) or asyncio.timeout instead"
    )
