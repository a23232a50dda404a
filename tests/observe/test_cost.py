"""What the stream of events costs a client that nobody listens to: next to nothing, by count of the interpreter's own steps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.without_events import write_without_events

ROOT = Path(__file__).parents[2]

COUNT = """
import sys
import lockline

lock = lockline.connect("memory:").lock("x")
for _ in range(20):
    lock.acquire().release()
steps = 0

def trace(frame, event, argument):
    global steps
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    steps += event == "opcode"
    return trace

# Python 3.12 traces instructions only if a frame asked for it before.
sys._getframe().f_trace_opcodes = True
sys.settrace(trace)
for _ in range(20):
    lock.acquire().release()
sys.settrace(None)
print(lockline.__file__, steps)
"""


def steps_of_a_pair(source: Path) -> int:
    ran = subprocess.run(
        [sys.executable, "-c", COUNT],
        env={"PYTHONPATH": str(source), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    where, steps = ran.stdout.split()
    assert Path(where).is_relative_to(source)
    return int(steps)


def test_where_nobody_listens_a_pair_takes_at_most_one_step_in_a_hundred_more(tmp_path: Path) -> None:
    """The time itself is measured by bench/observe.py, which needs a quiet machine; what is done can be counted on any."""
    ours, without = steps_of_a_pair(ROOT / "src"), steps_of_a_pair(write_without_events(ROOT / "src", tmp_path))
    assert without > 20 * 200, "or nothing was counted"
    assert without <= ours <= without * 1.01
