"""Staying awake for an answer pays only where the server is near: what was in vain is not tried again soon."""

from __future__ import annotations

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
