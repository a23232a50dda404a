"""Every lock does under every failure what the literature says of it: no better and no worse."""

from __future__ import annotations

import pytest

from lockline.lab import failures, locks
from lockline.lab.draw.terminal import show
from lockline.lab.verdicts import Verdict

from .cells import SAMPLE, chosen
from .conftest import Ran

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_sample_has_every_failure_and_every_lock_and_every_verdict_that_is_expected() -> None:
    assert list(SAMPLE) == list(failures.catalogue())
    assert {lock for those in SAMPLE.values() for lock in those} == set(locks.catalogue())
    expected = {locks.catalogue()[lock].expected.get(failure) for failure, those in SAMPLE.items() for lock in those}
    somewhere = {verdict for lock in locks.catalogue().values() for verdict in lock.expected.values()}
    assert expected == somewhere - {Verdict.NOT_APPLICABLE.value}


@pytest.mark.parametrize(("lock", "failure"), chosen())
def test_the_cell_is_what_the_literature_says(ran: Ran, lock: str, failure: str) -> None:
    outcome = ran.cell(lock, failure)
    assert outcome.as_expected, f"{outcome.reason}\n{show(outcome)}\n{outcome.facts}"


def test_every_run_that_was_judged_says_why_in_a_line_and_has_a_trace(ran: Ran) -> None:
    for outcome in ran.outcomes.values():
        assert outcome.reason
        assert "\n" not in outcome.reason
        assert "{" not in outcome.cause
        if outcome.verdict.judged:
            assert outcome.cure
            assert outcome.link
            assert outcome.cause
            assert outcome.events


def test_no_fenced_lock_ever_loses_an_update(ran: Ran) -> None:
    fenced = [outcome for (lock, _), outcome in ran.outcomes.items() if lock.endswith("-fence")]
    assert any(outcome.verdict.judged for outcome in fenced)
    assert [outcome for outcome in fenced if outcome.verdict in (Verdict.LOST_UPDATE, Verdict.TWO_HOLDERS)] == []


def test_a_fence_refused_something_where_without_it_an_update_was_lost(ran: Ran) -> None:
    lost = [
        cell
        for cell, outcome in ran.outcomes.items()
        if cell[0].startswith("lockline-") and outcome.verdict is Verdict.LOST_UPDATE
    ]
    assert lost
    for lock, failure in lost:
        fenced = ran.cell(f"{lock}-fence", failure)
        assert "fence refused" in {event.kind for event in fenced.events}, (lock, failure)
