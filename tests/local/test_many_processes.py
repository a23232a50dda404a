"""Many processes on one number, killed at random: nothing lost, tokens rise, nobody waits for the dead."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ..tier import sample


@pytest.mark.slow
def test_no_update_is_lost_while_holders_and_waiters_are_killed(tmp_path: Path) -> None:
    processes, times, seed = *sample((10, 30), (50, 50)), 1
    ran = subprocess.run(
        [sys.executable, "-m", "tests.local.incrementers", str(tmp_path), str(processes), str(times), str(seed)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert ran.returncode == 0, ran.stderr
    outcome = json.loads(ran.stdout)
    assert outcome["errors"] == []
    assert outcome["wrong"] == []
    # Nobody waited for a dead one's lease to run out: it would last longer than the whole run may.
    assert outcome["unfinished"] == 0
    assert outcome["number"] == processes * times == sum(outcome["counts"])
    assert outcome["killed"] > sample(5, 20)
