"""Claims with little time are renewed apart from claims with much."""

from __future__ import annotations

import secrets
from typing import Any

import lockline
from lockline.core.batching import SizedBatches
from lockline.core.claim import Claim
from tests.servers.process import wait_for


def test_a_claim_with_little_time_does_not_shorten_the_renewal_of_one_with_much() -> None:
    asked: list[tuple[list[float], float]] = []
    with lockline.connect(f"memory:{secrets.token_hex(8)}") as client:
        engine: Any = client._engine
        renew = engine.backend.renew

        async def noted(claims: list[Claim], until: float) -> Any:
            asked.append(([claim.ttl for claim in claims], until - engine.runtime.now()))
            return await renew(claims, until)

        engine.backend.renew = noted
        long: Any = client.lock("long", ttl=60).acquire()
        short: Any = client.lock("short", ttl=5).acquire()
        long._live.due = short._live.due = 0.0
        engine._keeper.ring()
        wait_for(lambda: {ttl for ttls, _ in asked for ttl in ttls} == {5, 60}, 60, "a renewal of both")
        short.release()
        long.release()
    for ttls, time in asked:
        assert ttls in ([5], [60]), "each in a batch of its own"
        assert time > 5 if ttls == [60] else time < 5, asked


def test_a_batch_is_bounded_by_number_and_by_bytes_and_comes_again_in_halves() -> None:
    by_bytes = SizedBatches([4, 4, 4, 1, 9, 20, 1], int, most=10, most_bytes=10)
    assert list(by_bytes) == [[4, 4], [4, 1], [9], [20], [1]]
    by_number = SizedBatches(range(5), lambda _: 0, most=2, most_bytes=10)
    assert list(by_number) == [[0, 1], [2, 3], [4]]
    halved = SizedBatches(range(3), lambda _: 0, most=3, most_bytes=10)
    taken = []
    for batch in halved:
        if len(batch) > 1:
            assert halved.halve(batch)
            assert halved.rest() == [0, 1, 2][batch[0] :]
        else:
            assert not halved.halve(batch)
            taken.append(batch)
    assert taken == [[0], [1], [2]]
