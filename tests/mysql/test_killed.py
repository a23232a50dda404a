"""The server is killed under a crowd of sixteen processes, and comes back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.calm import Busy
from tests.redis.crowd import Crowd

from .conftest import Database

pytestmark = [pytest.mark.server, pytest.mark.slow]
TTL = 2.0


@pytest.mark.timeout(180)
def test_sixteen_processes_survive_a_server_that_is_killed_and_comes_back(database: Database, tmp_path: Path) -> None:
    with Crowd(database.url, tmp_path, 16, ["a", "b", "c"], TTL) as crowd:
        crowd.wait_for_grants(2)
        for _ in range(2):
            database.server.kill()
            database.server.start()
            back, busy = time.monotonic(), Busy()
            crowd.wait_for_grants(2, since=back)
            again = [
                min(held.began for held in crowd.history() if held.name == name and held.began > back)
                for name in crowd.names
            ]
            assert max(again) - back < TTL + 2.0 + busy()
        crowd.stop()
        crowd.check_tokens()
        crowd.check_resource()
        assert crowd.overlaps() == []
