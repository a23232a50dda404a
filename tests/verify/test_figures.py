"""The figures of a run say what is known, and nothing where nothing is."""

from __future__ import annotations

from lockline.lab.verify.figures import fairness, jain, per_second, waits
from lockline.lab.verify.history import Fault

from .histories import held, history, refused


def test_waits_are_of_those_who_were_granted() -> None:
    found = waits([*(held(f"1.{n}", n, n, n + 0.1 * n, n + 0.5) for n in range(1, 6)), refused("2.1", 0.0, 9.0)])
    assert (found.count, round(found.median, 3), round(found.longest, 3)) == (5, 0.3, 0.5)
    assert waits([]).count == 0


def test_fairness_is_between_those_to_whom_nothing_was_done() -> None:
    of_each = [
        held(f"{worker}.{n}", 9 * worker + n + 1, 1, 2, 3, name="lock-1") for worker in (1, 2, 3) for n in range(4)
    ]
    assert fairness(history(*of_each)) == 1.0
    assert fairness(history(*of_each[:6])) == jain([4, 2])
    frozen = Fault("freeze", 1.0, 2.0, worker=1)
    assert fairness(history(*of_each[:6], faults=(frozen,))) is None


def test_grants_are_counted_in_their_second() -> None:
    assert per_second(history(held("1.1", 1, 0.0, 0.5, 0.6), held("1.2", 2, 1.0, 1.5, 1.6), ended=2.0)) == [1, 1, 0]
