"""Small programs that run as a process of their own, so that a fork, a signal or a hang is theirs alone."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]

PREAMBLE = """
import asyncio, faulthandler, gc, os, random, signal, sys, threading, time
import lockline
from lockline import aio
faulthandler.dump_traceback_later(float(sys.argv[1]), exit=True)
url = sys.argv[2]
"""


def run(program: str, *arguments: str, seconds: float = 120.0, **options: object) -> str:
    """What the program printed; an AssertionError with its stacks when it hangs or fails."""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PREAMBLE + textwrap.dedent(program), str(seconds), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=seconds + 5,
        check=False,
        **options,  # type: ignore[call-overload]
    )  # fmt: skip
    assert ran.returncode == 0, f"exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return str(ran.stdout).strip()
