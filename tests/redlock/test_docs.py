"""The program of docs/backends/redlock.md runs, on servers of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .servers import servers

PAGE = Path(__file__).parents[2] / "docs" / "backends" / "redlock.md"


@pytest.mark.server
def test_the_programs_of_the_page_run() -> None:
    programs = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert programs
    with servers(3) as three:
        for program in programs:
            named = re.sub(r'"redlock://[^"]*"', f'"{three.url}"', program)
            ran = subprocess.run(
                [sys.executable, "-W", "error", "-c", named + "\nclient.close()\n"],
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
            assert ran.returncode == 0, ran.stderr
            assert int(ran.stdout) > 10**15
