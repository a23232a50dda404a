"""How late this machine lets a process run that wants nothing but to wake up: what is late for that reason is late for no reason of a lock's."""

from __future__ import annotations

import threading
import time
from typing import Final

from ...runtime.clock import now

EVERY: Final = 0.05
"""Seconds that it sleeps."""
STEPS: Final = 3
"""A turn goes through so many hands (the one who lets go, the store, the next one), each of which may have to wait as long."""


class Stalls:
    """Sleeps and wakes up while the block lasts, and adds up how much too late."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        self._over = False
        self._thread = threading.Thread(target=self._work, name="lockline-verify-stalls", daemon=True)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True

    def _work(self) -> None:
        stalled = 0.0
        while not self._over:
            due = now() + EVERY
            time.sleep(EVERY)
            moment = now()
            stalled += STEPS * (moment - due)
            self.samples.append((moment, stalled))
