"""Staying awake for an answer pays only where the server is near: what was in vain is not tried again soon."""

from __future__ import annotations

import time

import pytest

from lockline.backends.resp import connection_blocking
from lockline.backends.resp.connection_blocking import LONGEST_REST, Spin


def tries(spin: Spin, answer: bytes | None) -> int:
    """How often one look tried."""
    count = 0

    def attempt() -> bytes | None:
        nonlocal count
        count += 1
        return answer

    assert spin.look(attempt) == answer or not count
    return count


def test_a_near_server_is_found_awake_each_time() -> None:
    spin = Spin()
    assert [tries(spin, b"here") for _ in range(50)] == [1] * 50


def test_a_far_server_is_tried_less_and_less() -> None:
    spin = Spin()
    tried = sum(tries(spin, None) > 0 for _ in range(3 * LONGEST_REST))
    assert tried <= 9


def test_a_server_that_comes_near_again_is_found_awake_again() -> None:
    spin = Spin()
    for _ in range(20):
        tries(spin, None)
    rested = [tries(spin, b"here") for _ in range(2 * LONGEST_REST)]
    assert rested[-1] == 1
    assert sum(rested) > LONGEST_REST


def test_a_core_that_somebody_else_wants_is_left_at_once_and_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_blocking, "_let_others", lambda: time.sleep(0.001))
    # As long as it would take to look a hundred times: what ends it is that the core was away, not that the time is over.
    monkeypatch.setattr(connection_blocking, "MOMENT", 0.1)
    spin = Spin()
    assert tries(spin, None) == 1
    assert [tries(spin, b"here") for _ in range(4)] == [0] * 4, "it rests"
    assert tries(spin, b"here") == 1
