"""Some seconds of live faults on real servers; `make torture-redlock` is the long version."""

from __future__ import annotations

import pytest

from ..tier import sample
from .live import directed, trial

pytestmark = [pytest.mark.server, pytest.mark.slow]


CLIENTS = sample(3, 8)
PAUSE = sample(0.02, 0.0)


def test_processes_under_faults_never_get_a_wrong_token_nor_overlap() -> None:
    """Five seconds of faults: the long version is for `make torture-redlock`."""
    verdict = trial(sample(8, 25), seed=1, clients=CLIENTS, pause=PAUSE)
    assert verdict.grants > 0, str(verdict)
    assert verdict.twice == verdict.out_of_order == verdict.lost_updates == 0, str(verdict)
    assert verdict.overlaps == 0, str(verdict)


def test_with_stepped_clocks_leases_may_overlap_but_tokens_stay_right() -> None:
    """Three seconds of faults: the long version is for `make torture-redlock`."""
    verdict = trial(sample(6, 15), seed=2, step_clocks=True, clients=CLIENTS, pause=PAUSE)
    assert verdict.grants > 0, str(verdict)
    assert verdict.twice == verdict.out_of_order == verdict.lost_updates == 0, str(verdict)


def test_a_majority_of_the_wiped_and_the_lagging_server_gives_no_old_token() -> None:
    rounds = sample(2, 4)
    verdict = directed(rounds, seed=3)
    assert verdict.grants >= 10 * rounds, str(verdict)
    assert verdict.twice == verdict.out_of_order == 0, str(verdict)
