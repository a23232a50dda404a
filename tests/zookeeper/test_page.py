"""The programs on ZooKeeper's page run as they stand there, on a server of the tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..servers.zookeeper import ZooKeeper

PAGE = Path(__file__).parents[2] / "docs" / "backends" / "zookeeper.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.server
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_the_programs_of_the_page_run(server: ZooKeeper, number: int) -> None:
    program = PROGRAMS[number].replace("zk1:2181,zk2:2181,zk3:2181", f"127.0.0.1:{server.port}")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
