"""The cells of the matrix that are chosen for this run, run once for all tests of this room."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lockline.lab.runner import Laboratory
from lockline.lab.verdicts import Outcome, Verdict

from ..servers.process import missing
from .cells import chosen

PACE = 3.0
"""How much longer than at home every ttl is: the shortest is then 6 s, which a busy machine renews in time."""


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
    lab = Laboratory(PACE)
    try:
        began = time.monotonic()
        outcomes = {(outcome.lock, outcome.failure): outcome for outcome in lab.matrix(chosen())}
        yield Ran(lab, outcomes, time.monotonic() - began)
    finally:
        lab.close()
