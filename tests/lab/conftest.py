"""The whole matrix, run once for all tests of this room."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lockline.lab.runner import Laboratory
from lockline.lab.verdicts import Outcome, Verdict

from ..servers.process import missing


@dataclass
class Ran:
    """What the laboratory found."""

    lab: Laboratory
    outcomes: dict[tuple[str, str], Outcome]
    seconds: float

    def cell(self, lock: str, failure: str) -> Outcome:
        """One of them; skipped where its server is not installed."""
        outcome = self.outcomes[lock, failure]
        if outcome.verdict is Verdict.MISSING:
            missing(outcome.reason)
        return outcome


@pytest.fixture(scope="session")
def ran() -> Iterator[Ran]:
    lab = Laboratory()
    try:
        began = time.monotonic()
        cells = [(lock, failure) for lock in lab.locks for failure in lab.failures]
        outcomes = {(outcome.lock, outcome.failure): outcome for outcome in lab.matrix(cells)}
        yield Ran(lab, outcomes, time.monotonic() - began)
    finally:
        lab.close()
