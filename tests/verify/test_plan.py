"""The same seed gives the same run, as far as that is ours to give."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import islice

from lockline.lab.verify.faults import NETWORK, WORKERS, schedule
from lockline.lab.verify.plan import Dice, Names, Settings

SETTINGS = Settings("redis://h", 0, "/tmp", "p/", 7, 0.0)


def test_a_seed_replays_the_schedule() -> None:
    first, again = (list(islice(schedule(7, 2.0, 2.0, True), 40)) for _ in range(2))
    assert first == again
    assert first != list(islice(schedule(8, 2.0, 2.0, True), 40))


def test_every_kind_comes_once_before_any_comes_again() -> None:
    kinds = ["kill a holder", "kill a waiter", *WORKERS, *NETWORK]
    cycle = list(islice(schedule(3, 2.0, 2.0, True), len(kinds)))
    assert Counter(blow.kind for blow in cycle) == Counter(kinds)
    # The first two have quiet after them, the last before the next of its kind: recovery is judged in quiet only.
    assert cycle[0].quiet > 3.0
    assert cycle[1].quiet > 3.0
    assert cycle[-1].quiet > 3.0
    without = {blow.kind for blow in islice(schedule(3, 2.0, 2.0, False), 20)}
    assert without == {"kill a holder", "kill a waiter", *WORKERS}


def test_a_seed_replays_what_each_party_does() -> None:
    def steps(settings: Settings, party: int) -> list[object]:
        dice = Dice(settings, party)
        return [dice.step() for _ in range(300)]

    assert steps(SETTINGS, 0) == steps(SETTINGS, 0)
    assert steps(SETTINGS, 0) != steps(SETTINGS, 1)
    assert steps(SETTINGS, 0) != steps(replace(SETTINGS, number=1), 0)


def test_a_store_without_shared_locks_is_asked_for_none() -> None:
    dice = Dice(replace(SETTINGS, shares=False), 0)
    steps = [dice.step() for _ in range(300)]
    assert {step.kind for step in steps} == {"lock"}
    assert {step.name for step in steps} <= set(Names("p/", shares=False).everything)


def test_settings_travel_as_one_line() -> None:
    text = SETTINGS.text()
    assert "\n" not in text
    assert Settings.read(text) == SETTINGS
