"""Every lock that is known to be broken is found out, and one that is not is let go."""

from __future__ import annotations

import os

import pytest

from lockline.lab.verify.machine import Machine, RunOutcome, RunWish

from ..tier import sample
from .broken import BROKEN, QUICK
from .toy import ROOT, a_toy

pytestmark = pytest.mark.slow
WORKERS = sample(3, 6)


def run(mutation: str, seconds: float, subject: str = "client", least: int = 100) -> RunOutcome:
    with a_toy(mutation) as url:
        return Machine(
            RunWish(
                url, seconds=seconds, workers=WORKERS, seed=3, subject=f"tests.verify.toy:{subject}", mutation=mutation, ports={"toy": 0},
                until_broken=True, least=least,
            )
        ).run()  # fmt: skip


@pytest.fixture(autouse=True)
def _workers_find_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))


def test_there_are_enough() -> None:
    assert len(BROKEN) >= 30
    assert len(set(QUICK) & set(BROKEN)) == len(QUICK) == 3


@pytest.mark.usefixtures("patient_judge")
def test_the_store_without_a_mistake_keeps_its_promises() -> None:
    """Takes some 10 s: in less a busy machine may not make the grants without which there is no verdict."""
    outcome = run("", sample(5.0, 20.0), least=sample(10, 100))
    assert [(finding.promise, finding.text) for finding in outcome.verdict.broken] == []
    assert outcome.verdict.code == 0


def test_workers_that_fall_over_take_the_verdict_with_them() -> None:
    outcome = run("", 2.0, subject="falls_over")
    assert outcome.verdict.code == 2
    assert outcome.verdict.failed == WORKERS
    assert sum("ended with 1: ZeroDivisionError" in note for note in outcome.notes) == WORKERS


@pytest.mark.parametrize("mutation", sample(QUICK, tuple(BROKEN)))
def test_it_is_found_out(mutation: str) -> None:
    outcome = run(mutation, BROKEN[mutation].seconds)
    assert outcome.verdict.broken, (BROKEN[mutation].mistake, outcome.verdict)
