"""What the runs of this folder share."""

from __future__ import annotations

import pytest

from lockline.lab.verify import turns

TTL = 6.0
"""Seconds. On a busy machine a renewal may come seconds late, and that is no finding."""


@pytest.fixture
def patient_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    """How soon the next one holds is for `bench/`: a busy disk delays a grant, and the judge subtracts only a busy processor."""
    monkeypatch.setattr(turns, "SOON", 60.0)
