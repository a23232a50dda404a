"""A clock to hold upper bounds against: it stands still while the machine has more to do than processors.

"Within a second" says something about the code only where the machine had that second to give. What comes late because
somebody else had the processor is late for no reason of ours; what sleeps, polls or waits for a ttl to pass is late on a calm
machine too, and that is what such a bound is there to find. For lower bounds, and for what a server or a lease counts,
`time.monotonic()` remains the clock.
"""

from __future__ import annotations

import time
from pathlib import Path

PRESSURE = Path("/proc/pressure/cpu")
"""Linux counts here for how long at least one task had to wait for a processor: `some avg10=… total=<microseconds>`."""


def calm(pressure: Path = PRESSURE) -> float:
    """Seconds, of which those are not counted in which somebody on this machine waited for a processor."""
    return time.monotonic() - _stalled(pressure)


def _stalled(pressure: Path) -> float:
    try:
        some = pressure.read_text().splitlines()[0]
    except OSError:  # not Linux, or a kernel that does not count: then every second is one
        return 0.0
    return int(some.rpartition("total=")[2]) / 1e6
