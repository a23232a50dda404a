"""The programs in docs/backends/consul.md run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..servers.consul import ConsulCluster

PAGE = Path(__file__).parents[2] / "docs" / "backends" / "consul.md"
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.server
def test_the_programs_of_the_page_run(consul: ConsulCluster, tmp_path: Path) -> None:
    blocks = PYTHON_BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 2
    program = "\n".join(blocks).replace("localhost:8500", f"127.0.0.1:{consul.servers[0].port}")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split()[1] == "consensus"
