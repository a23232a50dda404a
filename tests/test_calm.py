"""The clock of upper bounds stands still under load, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .calm import PRESSURE, calm


def test_a_second_in_which_somebody_waited_for_a_processor_is_not_counted(tmp_path: Path) -> None:
    pressure = tmp_path / "cpu"
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=5000000\nfull avg10=0.00 total=0\n")
    began, really = calm(pressure), time.monotonic()
    pressure.write_text("some avg10=9.00 avg60=0.00 avg300=0.00 total=8000000\nfull avg10=0.00 total=0\n")
    took = calm(pressure) - began
    assert -3 <= took <= time.monotonic() - really - 3 + 0.001


def test_where_nobody_counts_every_second_is_one(tmp_path: Path) -> None:
    before = time.monotonic()
    assert before <= calm(tmp_path / "nothing") <= time.monotonic()


def test_with_more_work_than_processors_it_falls_behind() -> None:
    if not PRESSURE.exists():
        pytest.skip("this kernel does not count who waits for a processor")
    busy = [
        subprocess.Popen([sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE)
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        for each in busy:
            assert each.stdout is not None
            each.stdout.readline()
        began, really = calm(), time.monotonic()
        time.sleep(0.5)
        assert calm() - began < 0.6 * (time.monotonic() - really)
    finally:
        for each in busy:
            each.kill()
            each.communicate()
