"""Leases that are seen to be renewed, at once and with a ttl that no standstill of the machine uses up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.servers.process import wait_for

TTL = 60.0
"""The first renewal is due after twenty seconds, unless it is brought forward."""


def renewal_of(*leases: Any) -> Callable[[], bool]:
    """Make these leases due now; whether each has been renewed since. The renewer finds them due in its next round, by itself."""
    lives = [getattr(lease, "real", lease)._live for lease in leases]
    before = [live.ends for live in lives]
    for live in lives:
        live.due = live.runtime.now()
    return lambda: all(live.ends > then for live, then in zip(lives, before, strict=True))


def run_out(lease: Any) -> None:
    """Let its time be over now: that of its own clock, which its holder goes by."""
    live = getattr(lease, "real", lease)._live
    live.ends = live.runtime.now()


def wait_for_renewal(*leases: Any) -> None:
    """Wait until each of these leases has been renewed once more; fail if one is lost before."""
    renewed = renewal_of(*leases)
    wait_for(lambda: renewed() or not all(lease.valid for lease in leases), 120, "a renewal")
    assert renewed(), "a lease was lost"
