"""How long this machine kept somebody waiting for a processor: what is late for that reason is late for no reason of a lock's."""

from __future__ import annotations

import threading
import time
from typing import Final

from ...runtime.clock import now
from ..calm import calm

EVERY: Final = 0.05


class Stalls:
    """Takes samples while the block lasts."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lockline-verify-stalls", daemon=True)

    def __enter__(self) -> Stalls:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _work(self) -> None:
        while not self._over.wait(EVERY):
            self.samples.append((now(), time.monotonic() - calm()))
