"""Staying awake for an answer pays only where the server is near: what was in vain is not tried again soon."""

from __future__ import annotations

from lockline.backends.redis.awake import LONGEST_REST, Awake


def tries(awake: Awake, answer: bytes | None) -> int:
    """How often one look tried."""
    count = 0

    def attempt() -> bytes | None:
        nonlocal count
        count += 1
        return answer

    assert awake.look(attempt) == answer or not count
    return count


def test_a_near_server_is_found_awake_each_time() -> None:
    awake = Awake()
    assert [tries(awake, b"here") for _ in range(50)] == [1] * 50


def test_a_far_server_is_tried_less_and_less() -> None:
    awake = Awake()
    tried = sum(tries(awake, None) > 0 for _ in range(3 * LONGEST_REST))
    assert tried <= 9


def test_a_server_that_comes_near_again_is_found_awake_again() -> None:
    awake = Awake()
    for _ in range(20):
        tries(awake, None)
    rested = [tries(awake, b"here") for _ in range(2 * LONGEST_REST)]
    assert rested[-1] == 1
    assert sum(rested) > LONGEST_REST
