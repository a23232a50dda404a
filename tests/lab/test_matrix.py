"""Every lock does under every failure what the literature says of it: no better and no worse."""

from __future__ import annotations

import pytest

from lockline.lab import failures, locks
from lockline.lab.draw.terminal import show
from lockline.lab.verdicts import Verdict

from .conftest import Ran

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(1200)]
LOCKS = list(locks.catalogue())
FAILURES = list(failures.catalogue())


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("lock", LOCKS)
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


def test_the_whole_matrix_takes_less_than_five_minutes(ran: Ran) -> None:
    assert ran.seconds / ran.lab.pace < 300


def test_no_fenced_lock_ever_loses_an_update(ran: Ran) -> None:
    fenced = [outcome for (lock, _), outcome in ran.outcomes.items() if lock.endswith("-fence")]
    assert sum(outcome.verdict.judged for outcome in fenced) > 50
    assert [outcome for outcome in fenced if outcome.verdict in (Verdict.LOST_UPDATE, Verdict.TWO_HOLDERS)] == []


def test_a_fence_refused_something_where_without_it_an_update_was_lost(ran: Ran) -> None:
    for (lock, failure), outcome in ran.outcomes.items():
        if lock.startswith("lockline-") and outcome.verdict is Verdict.LOST_UPDATE:
            fenced = ran.cell(f"{lock}-fence", failure)
            assert "fence refused" in {event.kind for event in fenced.events}, (lock, failure)
