"""The whole matrix, run once for all tests of this room."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lockline.lab.runner import Laboratory
from lockline.lab.verdicts import Outcome, Verdict

from ..calm import calm
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
    lab = Laboratory(pace=float(os.environ.get("LOCKLINE_TEST_PACE", "1")))
    try:
        began = calm()
        cells = [(lock, failure) for lock in lab.locks for failure in lab.failures]
        outcomes = {(outcome.lock, outcome.failure): outcome for outcome in lab.matrix(cells)}
        yield Ran(lab, outcomes, calm() - began)
    finally:
        lab.close()
