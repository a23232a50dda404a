"""SIGTERM ends a program also where it arrives inside a finalizer, in which Python drops every exception."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

DYING = """
import signal, sys, time

class Dying:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

sys.unraisablehook = lambda dropped: print("dropped", type(dropped.exc_value).__name__, flush=True)
"""
LEAD = """
from lockline.runtime.termination import exit_on_sigterm
with exit_on_sigterm():
    Dying()
    time.sleep(600)
"""
COMMAND = """
from lockline.cli.signals import Signals, Stopped
signals = Signals()
signals.wait_in_line()
try:
    Dying()
    time.sleep(600)
except Stopped as stopped:
    sys.exit(128 + stopped.number)
"""


@pytest.mark.parametrize("program", [LEAD, COMMAND], ids=["lead", "command"])
def test_a_signal_that_arrives_in_a_finalizer_is_not_lost(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", DYING + program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "", "")


@pytest.mark.parametrize(("deed", "dropped"), [("1 / 0", "ZeroDivisionError"), ("sys.exit(3)", "SystemExit")])
def test_what_others_drop_is_still_reported_and_ends_nothing(deed: str, dropped: str) -> None:
    program = f"""
class Failing:
    def __del__(self):
        {deed}
from lockline.runtime.termination import exit_on_sigterm
with exit_on_sigterm():
    Failing()
    time.sleep(0.5)
Failing()
"""
    done = subprocess.run([sys.executable, "-c", DYING + program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"dropped {dropped}\n" * 2)
