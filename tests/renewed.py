"""Leases that are seen to be renewed: exact, and sooner than to wait until a renewal is due or the ttl would be over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lockline.runtime.clock import validity

from .calm import calm

TTL = 6.0
"""Renewed after two seconds, and lost only if the machine stands still for four."""
AGAIN = 0.25
"""After so many seconds a renewal is asked for once more: the last one may have been under way already."""
SECONDS = 60.0


def live_of(lease: Any) -> Any:
    """What the client knows of this lease."""
    return getattr(lease, "real", lease)._live


def renewal_of(*leases: Any) -> Callable[[], bool]:
    """Whether each of these leases has been renewed since this call."""
    lives = [live_of(lease) for lease in leases]
    before = [live.ends for live in lives]
    return lambda: all(live.ends > then for live, then in zip(lives, before, strict=True))


def renewed_since(live: Any, moment: float) -> bool:
    """Whether the store has confirmed a renewal of this claim that was sent after this moment."""
    return bool(live.ends > moment + validity(live.claim.ttl))


def hasten(*leases: Any) -> None:
    """Let the next renewal of each be due now, whatever its ttl. The renewer itself decides whether it renews them."""
    for live in map(live_of, leases):
        live.due = 0.0
        live.keeper._agenda.note(0.0)
        live.keeper.ring()


def end_now(lease: Any) -> None:
    """Let the time be over for which its client may trust this lease, as if the ttl had passed; its store does not know that."""
    live = live_of(lease)
    live.ends = live.runtime.now() - 1.0


def wait_for_renewal(*leases: Any) -> None:
    """Wait until the store has confirmed a renewal of each that was sent after this moment; fail if one is lost before."""
    lives = [(lease, live_of(lease), live_of(lease).runtime.now()) for lease in leases]
    until, again = calm() + SECONDS, 0.0
    while missing := [lease for lease, live, began in lives if not renewed_since(live, began)]:
        assert all(lease.valid for lease in missing), "a lease was lost"
        assert calm() < until, f"no renewal of {missing} within {SECONDS} s"
        if time.monotonic() >= again:
            hasten(*missing)
            again = time.monotonic() + AGAIN
        time.sleep(0.005)
    assert all(lease.valid for lease in leases), "a lease was lost"
