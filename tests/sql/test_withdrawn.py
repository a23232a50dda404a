"""A request that was long under way arrives after its claim was withdrawn: the claim gets no place."""

from __future__ import annotations

import time
from typing import Any

import pytest

import lockline
from lockline.core.claim import Claim
from lockline.core.shells import engine_of
from lockline.runtime.blocking import run

from .conftest import Store

pytestmark = pytest.mark.server


@pytest.mark.parametrize("wait", [True, False], ids=["acquire", "try"])
def test_a_request_that_arrives_after_its_withdrawal_takes_no_place(store: Store, wait: bool) -> None:
    """In just this order: a broken connection leaves it to chance which of the two arrives first."""
    with lockline.connect(store.url()) as client:
        engine = engine_of(client)
        backend: Any = engine.backend
        until = engine.runtime.now() + 60
        claim = Claim("x", "late-1", "alice", "lock", 1, 1, 600.0, time.time(), "")
        backend._doubts.add(claim.id)  # no answer came to its request, which may still be under way
        assert not run(backend.leave(claim, until))
        assert run(backend.enter(claim, wait=wait, until=until)) is None
        assert client.list() == []
        client.lock("x").acquire(timeout=60).release()
