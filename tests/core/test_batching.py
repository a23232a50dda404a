"""Claims with little time are renewed apart from claims with much."""

from __future__ import annotations

import secrets
from typing import Any

import lockline
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
