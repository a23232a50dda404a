"""The watchdog of `lockline run` sends nothing to a group that has ended: its number may be another group's by then."""

from __future__ import annotations

import subprocess
import sys

# In a process of its own: it forks, and becomes the parent of orphans.
STORY = """
from lockline.cli.supervisor import Supervisor, prepared
from lockline.cli.watchdog import Watchdog

said = []
say = Watchdog._say

def noted(self, line):
    said.append(line)
    say(self, line)

Watchdog._say = noted
with prepared(("true",)) as begin:
    group = begin.group.id
    assert Supervisor(begin, None).run({}).code == 0
    # Here `lockline run` releases the lock, or waits for --keep-for, for as long as that takes.
    print(said[0].split()[0] == str(group), said[-1].split())
"""


def test_after_the_command_has_ended_the_watchdog_leaves_its_group_alone() -> None:
    ran = subprocess.run([sys.executable, "-c", STORY], capture_output=True, text=True, timeout=60)
    assert (ran.stdout, ran.stderr) == ("True ['0', '0']\n", "")
