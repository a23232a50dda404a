"""Promises 1 and 4 where no client attends to a claim: it ends by the store's own time, and a late renewal does not revive it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from lockline.core.claim import Claim, Gone, Grant
from lockline.runtime.blocking import run

from .parties import Party, ThreadParty
from .scene import Passed, Scene


def ask(party: Party, request: Callable[[Any, float], Any]) -> Any:
    """Send one request to the store past the engine: no renewer knows of its claim, and none removes it when its ttl is over."""
    engine = party.client.real._engine

    def send() -> Any:
        coroutine = request(engine.backend, engine.runtime.now() + 60)
        return run(coroutine) if isinstance(party, ThreadParty) else coroutine

    return party.do(send)


def taken(party: Party, ttl: float) -> tuple[Claim, int]:
    """A claim that holds the lock for that long, and its token."""
    claim = Claim("x", f"{secrets.token_hex(8)}-1", party.name, "lock", 1, 1, ttl, time.time(), "")
    grant = ask(party, lambda backend, until: backend.enter(claim, wait=False, until=until))
    assert isinstance(grant, Grant)
    return claim, grant.token


def test_a_claim_that_no_client_renews_or_removes_goes_to_the_next_one(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    passed = Passed()
    claim, token = taken(alice, world.ttl(0.3))
    with bob.lock("x").acquire(timeout=60) as lease:
        assert passed() >= 0.98 * claim.ttl
        assert lease.token > token


def test_a_renewal_that_arrives_after_the_ttl_does_not_revive_its_claim(world: Scene) -> None:
    """It was long under way, and no other client has asked for the lock meanwhile, so the store may still have the claim."""
    alice, bob = world.party(), world.party()
    claim, token = taken(alice, world.ttl(0.3))
    time.sleep(1.5 * claim.ttl)
    (fate,) = ask(alice, lambda backend, until: backend.renew([claim._replace(ttl=300.0)], until))
    assert isinstance(fate, Gone)
    assert not world.line("x").claims
    assert not bob.lock("x").locked()
    with bob.lock("x").acquire(timeout=60) as lease:
        assert lease.token > token
