"""A job that gets another period goes by when it was last done, not by the number of the slot that this was."""

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
        # From the middle of a slot on, whatever time it really is.
        begins = record.now // (7 * DAY) * 7 * DAY + HOUR / 2
        return record._replace(now=begins + self.passed, written=record.written and begins)

    def run(self, period: Any) -> Any:
        return self.client.once_per(period, name="job")(lambda: None)()


@pytest.mark.parametrize(("before", "after"), [("1h", "1d"), ("1d", "7d"), ("5m", "1h"), ("59m", "1h")])
def test_a_longer_period_finds_it_done_in_its_own_slot_and_not_for_weeks(before: str, after: str) -> None:
    store = Elsewhen(f"longer-{before}-{after}")
    assert store.run(before).state == "ran"
    assert store.run(after).state == "done"
    store.passed = 7 * DAY
    run = store.run(after)
    assert (run.state, run.missed) == ("ran", None)


@pytest.mark.parametrize(("before", "after"), [("1d", "1h"), ("7d", "1d"), ("1h", "5m")])
def test_a_shorter_period_does_not_say_that_thousands_were_missed(before: str, after: str) -> None:
    store = Elsewhen(f"shorter-{before}-{after}")
    assert store.run(before).state == "ran"
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
