"""The slots of `once_per`: their borders, another period, and the name that a function goes by."""

from __future__ import annotations

from typing import Any

import pytest

import lockline

HOUR, DAY = 3600.0, 86400.0


class Elsewhen:
    """A store in which time goes by when it is told to."""

    def __init__(self, name: str) -> None:
        self.client = lockline.connect(f"memory:{name}")
        backend: Any = self.client._engine.backend
        self.kept, self.passed = backend.kept, 0.0
        backend.kept = self._later

    async def _later(self, *args: Any) -> Any:
        record = await self.kept(*args)
        # From a round time on, which is the middle of a slot, whatever time it really is.
        begins = record.now // (7 * DAY) * 7 * DAY
        return record._replace(now=begins + self.passed, written=record.written and begins)

    def run(self, period: Any) -> Any:
        return self.client.once_per(period, name="job")(lambda: None)()


@pytest.mark.parametrize(("before", "after"), [("1h", "1d"), ("1d", "7d"), ("5m", "1h"), ("59m", "1h"), (3590, 3600)])
def test_a_longer_period_finds_it_done_in_its_own_slot_and_not_for_weeks(before: Any, after: Any) -> None:
    store = Elsewhen(f"longer-{before}-{after}")
    assert store.run(before).state == "ran"
    assert store.run(after).state == "done"
    store.passed = 7 * DAY
    run = store.run(after)
    assert (run.state, run.missed) == ("ran", None)


@pytest.mark.parametrize(("before", "after"), [("1d", "1h"), ("7d", "1d"), ("1h", "5m"), (3600, 3590)])
def test_a_shorter_period_does_not_say_that_thousands_were_missed(before: Any, after: Any) -> None:
    store = Elsewhen(f"shorter-{before}-{after}")
    assert store.run(before).state == "ran"
    assert store.run(after).state == "done"
    store.passed = 2 * DAY
    run = store.run(after)
    assert (run.state, run.missed) == ("ran", None)


def test_the_same_period_says_how_many_were_missed_however_long_a_run_took() -> None:
    store = Elsewhen("same")
    assert store.run(HOUR).state == "ran"
    assert store.run(HOUR).state == "done"
    store.passed = 10 * HOUR
    run = store.run(HOUR)
    assert (run.state, run.missed) == ("ran", 9)


@pytest.mark.parametrize("period", ["5m", "15m", "1h", "1d"])
def test_machines_whose_clocks_differ_run_what_cron_starts_at_a_round_time_once(period: str) -> None:
    store = Elsewhen(f"border-{period}")
    states = []
    for store.passed in (-0.15, 0.0, 0.15):
        states.append(store.run(period).state)
    assert states == ["ran", "done", "done"]


def a_function(client: Any) -> Any:
    return client.once_per("1h")(a_function)


class Report:
    def make(self) -> None: ...


def test_a_function_whose_name_another_may_have_needs_one_that_is_said() -> None:
    client = lockline.connect("memory:names")
    assert callable(a_function(client))

    def local() -> None: ...

    def main() -> None: ...

    main.__module__, main.__qualname__ = "__main__", "main"
    for function, what in (
        (local, "in a function"),
        (lambda: None, "a lambda"),
        (Report.make, "a method"),
        (main, "program"),
    ):
        with pytest.raises(lockline.ConfigError, match=rf"{what}.*name="):
            client.once_per("1h")(function)
        client.once_per("1h", name="mine")(function)
