"""A moment of `make torture`, so that it works when somebody wants an hour of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.grounds import GROUNDS
from tests.torture.run import torture

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_a_server_that_keeps_its_data_keeps_its_promises(tmp_path: Path) -> None:
    with GROUNDS["redis-durable"](tmp_path) as ground:
        done = torture(ground, 14.0, seed=2, workers=4)
    assert not [(finding.promise, finding.text) for finding in done.wrong]
    assert not done.problems
    assert any(fault.kind.startswith("server: ") for fault in done.outcome.history.faults)
    assert done.outcome.verdict.code == 0
