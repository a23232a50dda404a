"""A wall clock that nobody steps, for the tests and their servers.

Redis, PostgreSQL and MariaDB end leases by the wall clock. A virtual machine that was paused steps its wall clock forward by the length
of the pause, and a lease ends before its time: no test is about that, unless it steps a clock itself.
"""

from __future__ import annotations

import time
from pathlib import Path

from lockline.lab.servers.clock import library


def steady_clock(folder: Path) -> dict[str, str]:
    """The environment of a process that has such a clock; nothing where there is no C compiler."""
    built = library(folder)
    if built is None:
        return {}
    offset = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return {"LD_PRELOAD": str(built), "STEADY_CLOCK": str(offset)}
