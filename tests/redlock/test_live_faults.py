"""A minute of live faults on real servers; `make torture-redlock` is the long version."""

from __future__ import annotations

import pytest

from .live import directed, trial

pytestmark = [pytest.mark.server, pytest.mark.slow]


def test_eight_processes_under_faults_never_get_a_wrong_token_nor_overlap() -> None:
    verdict = trial(25, seed=1)
    assert verdict.grants > 200, str(verdict)
    assert verdict.twice == verdict.out_of_order == verdict.lost_updates == 0, str(verdict)
    assert verdict.overlaps == 0, str(verdict)


def test_with_stepped_clocks_leases_may_overlap_but_tokens_stay_right() -> None:
    verdict = trial(15, seed=2, step_clocks=True)
    assert verdict.grants > 100, str(verdict)
    assert verdict.twice == verdict.out_of_order == verdict.lost_updates == 0, str(verdict)


def test_a_majority_of_the_wiped_and_the_lagging_server_gives_no_old_token() -> None:
    verdict = directed(4, seed=3)
    assert verdict.grants >= 40, str(verdict)
    assert verdict.twice == verdict.out_of_order == 0, str(verdict)
