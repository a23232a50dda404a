"""How long this machine kept somebody waiting for a processor: what is late for that reason is late for no reason of a lock's."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from ...runtime.clock import now

PRESSURE: Final = Path("/proc/pressure/cpu")
"""Linux counts here: `some avg10=… total=<microseconds>`. Elsewhere every second counts."""
EVERY: Final = 0.05


class Stalls:
    """Takes samples while the block lasts."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lockline-verify-stalls", daemon=True)

    def __enter__(self) -> Stalls:
        if PRESSURE.exists():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _work(self) -> None:
        while not self._over.wait(EVERY):
            try:
                some = PRESSURE.read_text().partition("\n")[0]
            except OSError:
                return
            self.samples.append((now(), int(some.rpartition("total=")[2]) / 1e6))
