"""What the keeper waits on: its own signal, and word from other processes about what it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .subscription import Peers

NAP: Final = 2.0
"""The longest sleep of a keeper without a look at the clock."""


class KeeperSignal:
    """The keeper's signal, which word from another process sets as well: an eviction is heard at once, not at the next tick."""

    def __init__(self, peers: Peers, heard: Callable[[str], None], now: Callable[[], float]) -> None:
        self._peers = peers
        self._heard = heard
        self._now = now
        self._set = False
        self._asleep = False

    def set(self) -> None:
        self._set = True
        if self._asleep:
            self._peers.ring()

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    async def wait(self, until: float | None) -> bool:
        try:
            # Before the look at the flag: whoever sets it from here on rings.
            self._asleep = True
            while not self._set:
                # In pieces: the kernel's timeout stops while the machine sleeps, and our clock does not.
                left = NAP if until is None else min(until - self._now(), NAP)
                if left <= 0:
                    return False
                for claim_id in self._peers.receive_for_keeper(left):
                    self._heard(claim_id)
                    self._set = True
            return True
        finally:
            self._asleep = False
