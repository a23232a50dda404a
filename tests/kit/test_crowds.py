"""Crowds of processes, some of which are killed at any moment: one value at a time, one run per slot, no item twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path

import pytest

from tests.contract.scene import Passed
from tests.servers.process import wait_for

from ..tier import sample
from .conftest import EVERYWHERE, ON_LOCAL, ON_REDIS, Start, Store, line_of
from .crowd import FRESH, PERIOD
from .test_leaders import judge

SIZE = sample(4, 8)
KILLS = sample(3, 6)
SLOTS = sample(20, 60)
CALLS = sample(300, 1000)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def crowd(
    start: Start,
    job: str,
    url: str,
    folder: Path,
    *,
    size: int,
    seconds: float,
    kills: int,
    lines: int,
    words: int = 0,
    word: str = "",
) -> Iterator[str]:
    """What the processes of a crowd wrote, line by line; now and then one is killed and another takes its place.

    However slow the machine is, it ends when there are so many lines, with so many different first words, and this one among them.
    """
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
        running[victim].wait(60)
        running[victim] = start("crowd", job, url, folder / f"{job}-{next(numbers)}")

    def is_enough() -> bool:
        there = list(written(folder, job))
        first = {line[0] for line in whole(iter(there))}
        return len(there) >= lines and len(first) >= words and (not word or word in first)

    wait_for(is_enough, 200, f"{lines} lines of {words} words")
    for process in running:
        process.kill()
        process.wait(60)
    yield from written(folder, job)


def written(folder: Path, job: str) -> Iterator[str]:
    for file in folder.glob(f"{job}-*"):
        # A last line without an end was cut short by a kill.
        yield from file.read_text().splitlines(keepends=True)


def whole(lines: Iterator[str]) -> list[list[str]]:
    return [line.split() for line in lines if line.endswith("\n")]


@pytest.mark.parametrize("store", EVERYWHERE, indirect=True)
def test_of_many_callers_one_computes_at_a_time_and_nobody_sees_an_old_value_after_a_newer(
    start: Start, store: Store, tmp_path: Path
) -> None:
    passed = Passed()
    calls = whole(
        crowd(start, "once", store.url, tmp_path, size=SIZE, seconds=KILLS, kills=KILLS, lines=CALLS + 100, words=4)
    )
    lasted = passed()
    assert len(calls) > CALLS
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


@pytest.mark.parametrize("store", ON_REDIS, indirect=True)
def test_of_many_processes_one_runs_the_job_of_each_slot(start: Start, url: str, tmp_path: Path) -> None:
    size, kills = sample((4, 3), (20, 15))
    told = whole(crowd(start, "once_per", url, tmp_path, size=size, seconds=SLOTS * PERIOD, kills=kills, lines=SLOTS))
    slots = [int(slot) for (slot,) in told]
    assert [slot for slot, times in Counter(slots).items() if times > 1] == []
    assert len(slots) >= SLOTS


@pytest.mark.parametrize("store", ON_LOCAL, indirect=True)
def test_a_lease_that_goes_round_is_never_had_twice_and_the_fence_refuses_who_detached_it(
    start: Start, url: str, tmp_path: Path
) -> None:
    (tmp_path / "protected").touch()
    seen = whole(
        crowd(start, "relay", url, tmp_path, size=SIZE, seconds=KILLS, kills=KILLS, lines=200, word="StaleToken")
    )
    judge([" ".join(words) for words in seen if len(words) == 3], 0)
    assert ["StaleToken"] in seen
    tokens = [int(token) for token in (tmp_path / "protected").read_text().split()]
    assert len(set(tokens)) > 30
    assert tokens == sorted(tokens), "nobody writes after a newer one"


@pytest.mark.parametrize("store", ON_LOCAL, indirect=True)
def test_no_item_of_a_pool_is_had_twice(start: Start, url: str, tmp_path: Path) -> None:
    seen = whole(crowd(start, "pool", url, tmp_path, size=SIZE, seconds=KILLS, kills=KILLS, lines=600, words=3))
    for item in "abc":
        judge([" ".join(words[1:]) for words in seen if words[0] == item], 0)
