"""A signal that comes while the command line is still making ready for signals is not lost."""

from __future__ import annotations

import subprocess
import sys

STRUCK = """
import os, signal
from lockline.cli.signals import Signals, Stopped

real = signal.signal

def install(number, handler):
    before = real(number, handler)
    if number == signal.SIGTERM:
        os.kill(os.getpid(), signal.SIGTERM)
    return before

signal.signal = install
try:
    Signals().wait_in_line()
except Stopped as stopped:
    print("stopped by", stopped.number)
"""


def test_a_signal_as_soon_as_it_is_caught_ends_the_wait() -> None:
    ran = subprocess.run([sys.executable, "-c", STRUCK], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "stopped by 15\n", ran.stderr
