"""The judge sees what is there, and nothing else."""

from __future__ import annotations

from typing import Any

from lockline.lab import failures, locks
from lockline.lab.judge import lost_update, two_holders
from lockline.lab.register import Write
from lockline.lab.trace import TraceEvent
from lockline.lab.verdicts import Verdict


def told(*rows: tuple[float, str, Any]) -> list[TraceEvent]:
    return [TraceEvent(at, lane, kind) for at, lane, kind in rows]


class TestTwoHolders:
    def test_one_after_the_other_is_fine(self) -> None:
        events = told((1, "A", "granted"), (2, "A", "letting go"), (3, "B", "granted"), (4, "B", "letting go"))
        assert two_holders(events, knows=False) is None

    def test_a_grant_beside_a_holder_is_seen(self) -> None:
        events = told((1, "A", "granted"), (3, "B", "granted"), (4, "A", "letting go"), (5, "B", "letting go"))
        assert two_holders(events, knows=False) == 3

    def test_a_dead_holder_does_not_count(self) -> None:
        events = told((1, "A", "granted"), (2, "A", "killed"), (3, "B", "granted"), (4, "B", "letting go"))
        assert two_holders(events, knows=False) is None

    def test_a_holder_that_knows_its_deadline_counts_only_as_far_as_it_acts(self) -> None:
        events = told(
            (1, "A", "granted"), (2, "A", "checked"), (3, "B", "granted"), (4, "A", "gave up"), (5, "B", "wrote")
        )
        assert two_holders(events, knows=True) is None
        acts = told((1, "A", "granted"), (3, "B", "granted"), (4, "A", "checked"), (5, "B", "wrote"))
        assert two_holders(acts, knows=True) == 3

    def test_behind_a_fence_only_what_was_let_in_counts(self) -> None:
        refused = told(
            (1, "A", "granted"),
            (2, "A", "read"),
            (3, "B", "granted"),
            (4, "B", "read"),
            (5, "A", "checked"),
            (6, "B", "wrote"),
        )
        assert two_holders(refused, knows=True, fenced=True) is None
        let_in = told(
            (1, "A", "granted"),
            (2, "A", "read"),
            (3, "B", "granted"),
            (4, "B", "read"),
            (5, "A", "wrote"),
            (6, "B", "wrote"),
        )
        assert two_holders(let_in, knows=True, fenced=True) is not None


class TestLostUpdate:
    def test_writes_that_rest_on_each_other_are_fine(self) -> None:
        assert lost_update([Write("A", 0, 1), Write("B", 1, 2)]) is None

    def test_two_that_rest_on_the_same_reading_are_one_too_many(self) -> None:
        assert lost_update([Write("A", 0, 1), Write("B", 0, 1)]) == Write("B", 0, 1)


def test_every_lock_has_an_expectation_for_every_failure_that_applies_to_it_and_for_no_other() -> None:
    verdicts = {verdict.value for verdict in Verdict}
    for lock in locks.catalogue().values():
        applies = {failure.id for failure in failures.catalogue().values() if not failure.applies(lock)}
        named = {failure for failure, verdict in lock.expected.items() if verdict != "not applicable"}
        assert named == applies, lock.id
        assert set(lock.expected.values()) <= verdicts
        assert lock.source


def test_every_failure_has_words_for_every_verdict_that_is_expected_of_it() -> None:
    for failure in failures.catalogue().values():
        for lock in locks.catalogue().values():
            verdict = lock.expected.get(failure.id, "not applicable")
            assert verdict == "not applicable" or verdict in failure.causes, (lock.id, failure.id, verdict)
