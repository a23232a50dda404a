"""The server is killed under a crowd of processes, and comes back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.etcd.crowd import PatientCrowd
from tests.tier import sample

from .conftest import Database

pytestmark = [pytest.mark.server, pytest.mark.slow]
TTL = 30.0
"""The server goes by the machine's wall clock, which may be set forward by seconds."""
STUCK = 120.0
"""Seconds after which a crowd that was granted nothing counts as stuck."""


def test_many_processes_survive_a_server_that_is_killed_and_comes_back(spare: Database, tmp_path: Path) -> None:
    """Longer than 5 s: a server that flushes its log is started three times, and the processes go on each time."""
    with PatientCrowd(f"{spare.url}?prefix=killed", tmp_path, sample(3, 16), ["a", "b"], TTL) as crowd:
        crowd.wait_for_grants(2, seconds=STUCK)
        for _ in range(2):
            spare.server.kill()
            spare.server.start()
            crowd.wait_for_grants(2, since=time.monotonic(), seconds=STUCK)
        crowd.stop()
        crowd.check_tokens()
        crowd.check_resource()
        assert crowd.overlaps() == []
