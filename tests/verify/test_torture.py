"""A moment of `make torture`, so that it works when somebody wants an hour of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture import run
from tests.torture.grounds import GROUNDS

from .conftest import TTL

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.mark.usefixtures("patient_judge")
def test_a_server_that_keeps_its_data_keeps_its_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes some 20 s: a deed to the server comes after seconds, and is over seconds after that."""
    monkeypatch.setattr(run, "TTL", TTL)
    with GROUNDS["redis-durable"](tmp_path) as ground:
        done = run.torture(ground, 14.0, seed=2, workers=2, least=10)
    assert not [(finding.promise, finding.text) for finding in done.wrong]
    assert not done.problems
    assert any(fault.kind.startswith("server: ") for fault in done.outcome.history.faults)
    assert done.outcome.verdict.code == 0
