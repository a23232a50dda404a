"""The clock of upper bounds stands still under load, and only then."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from .calm import PRESSURE, calm
from .servers.process import wait_for


def test_a_second_in_which_somebody_waited_for_a_processor_is_not_counted(tmp_path: Path) -> None:
    pressure = tmp_path / "cpu"
    pressure.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=5000000\nfull avg10=0.00 total=0\n")
    really = time.monotonic()
    began = calm(pressure)
    pressure.write_text("some avg10=9.00 avg60=0.00 avg300=0.00 total=8000000\nfull avg10=0.00 total=0\n")
    took = calm(pressure) - began
    assert -3.001 <= took <= time.monotonic() - really - 2.999


def test_where_nobody_counts_every_second_is_one(tmp_path: Path) -> None:
    before = time.monotonic()
    assert before <= calm(tmp_path / "nothing") <= time.monotonic()


def test_with_more_work_than_processors_it_falls_behind() -> None:
    if not PRESSURE.exists():
        pytest.skip("this kernel does not count who waits for a processor")
    busy = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(1 + (os.cpu_count() or 1))]
    try:
        began, really = calm(), time.monotonic()
        wait_for(lambda: (time.monotonic() - really) - (calm() - began) > 0.2, 120, "a clock that is behind")
    finally:
        for each in busy:
            each.kill()
            each.wait()
