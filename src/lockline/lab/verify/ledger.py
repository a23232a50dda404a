"""What is done to a run, written down while it is being done: nobody who looks meanwhile blames the store for it."""

from __future__ import annotations

import math
import threading
from dataclasses import replace

from ...runtime.clock import now
from .history import Fault


class Ledger:
    """All faults of a run, from any thread; one that goes on is felt until it is said to have ended."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._mutex = threading.Lock()

    def note(self, fault: Fault) -> None:
        """It is over already."""
        with self._mutex:
            self._faults.append(fault)

    def begin(self, kind: str, worker: int | None = None, detail: str = "") -> Fault:
        """It begins now, and nobody knows for how long."""
        begun = now()
        fault = Fault(kind, begun, begun, worker, detail, math.inf)
        self.note(fault)
        return fault

    def end(self, fault: Fault, felt: float) -> None:
        """It is over, and may be felt so much longer."""
        at = now()
        with self._mutex:
            self._faults[self._at(fault)] = replace(fault, ended=at, felt=at + felt)

    def _at(self, fault: Fault) -> int:
        return next(at for at, one in enumerate(self._faults) if one is fault)

    @property
    def faults(self) -> list[Fault]:
        """In the order of their beginnings."""
        with self._mutex:
            return sorted(self._faults, key=lambda fault: fault.begun)

    @property
    def doing(self) -> str:
        """What is being done now, for the display."""
        with self._mutex:
            return next((fault.kind for fault in reversed(self._faults) if fault.felt == math.inf), "")
