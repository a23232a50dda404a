"""A process with a steady clock goes by what it was given, whatever the machine's wall clock does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .servers.process import missing
from .steady_clock import steady_clock

HOUR_NS = 3600 * 10**9
CLOCKS = "import time; print(time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME))"


def test_the_wall_clock_is_that_of_the_boot_and_the_offset(tmp_path: Path) -> None:
    steady = steady_clock(tmp_path)
    if not steady:
        missing("a C compiler")
    ahead = int(steady["STEADY_CLOCK"]) + HOUR_NS
    environment = {**os.environ, **steady, "STEADY_CLOCK": str(ahead)}
    ran = subprocess.run([sys.executable, "-c", CLOCKS], env=environment, capture_output=True, check=True, timeout=60)
    assert abs(int(ran.stdout) - ahead) < HOUR_NS / 2
