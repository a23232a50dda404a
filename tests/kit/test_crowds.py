"""Crowds of processes, some of which are killed at any moment: one value at a time, one run per slot, no item twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest

from .conftest import Start, line_of
from .crowd import FRESH, PERIOD
from .test_leaders import judge

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def crowd(start: Start, job: str, url: str, folder: Path, *, size: int, seconds: float, kills: int) -> Iterator[str]:
    """What the processes of a crowd wrote, line by line; now and then one is killed and another takes its place."""
    chance = random.Random(seed := random.randrange(10**6))
    print("seed", seed)
    numbers = count()

    running = [start("crowd", job, url, folder / f"{job}-{next(numbers)}") for _ in range(size)]
    for process in running:
        assert line_of(process) == "begins"
    for _ in range(kills):
        time.sleep(seconds / kills)
        victim = chance.randrange(size)
        running[victim].kill()
        running[victim].wait(20)
        running[victim] = start("crowd", job, url, folder / f"{job}-{next(numbers)}")
    for process in running:
        process.kill()
        process.wait(20)
    for file in folder.glob(f"{job}-*"):
        # A last line without an end was cut short by a kill.
        yield from file.read_text().splitlines(keepends=True)


def whole(lines: Iterator[str]) -> list[list[str]]:
    return [line.split() for line in lines if line.endswith("\n")]


def test_of_two_hundred_callers_one_computes_at_a_time_and_nobody_sees_an_old_value_after_a_newer(
    start: Start, url: str, tmp_path: Path
) -> None:
    began = time.monotonic()
    calls = whole(crowd(start, "once", url, tmp_path, size=8, seconds=6, kills=6))
    lasted = time.monotonic() - began
    assert len(calls) > 1000
    assert [value for value, _, _ in calls if value.startswith("failed")] == []
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for value, before, after in calls:
        first[value] = min(first.get(value, float("inf")), float(after))
        last[value] = max(last.get(value, 0.0), float(before))
    values = sorted(first, key=first.__getitem__)
    assert 3 < len(values) <= lasted / FRESH + 1, "one value per fresh period"
    for older, newer in pairwise(values):
        assert last[older] <= first[newer], f"{older} was given after {newer}"


def test_of_twenty_processes_one_runs_the_job_of_each_slot(start: Start, url: str, tmp_path: Path) -> None:
    slots = [
        int(slot) for (slot,) in whole(crowd(start, "once_per", url, tmp_path, size=20, seconds=60 * PERIOD, kills=15))
    ]
    assert [slot for slot, times in Counter(slots).items() if times > 1] == []
    assert len(slots) > 10


def test_no_item_of_a_pool_is_had_twice(start: Start, url: str, tmp_path: Path) -> None:
    seen = whole(crowd(start, "pool", url, tmp_path, size=8, seconds=6, kills=6))
    for item in "abc":
        judge([" ".join(words[1:]) for words in seen if words[0] == item], 0)
