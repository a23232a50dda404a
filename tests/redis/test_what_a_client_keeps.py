"""What a client remembers of names, metadata and claims has a bound, and ends with them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import lockline
from lockline.backends.redis import connect as connect_backend
from lockline.backends.redis.commands import ROOM
from lockline.core import engine
from lockline.core.claim import Claim, Waiting
from lockline.core.waiting import Hints
from lockline.runtime import clock
from lockline.runtime.blocking import BlockingRuntime, run
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer
from tests.tier import sample

from .conftest import Town

pytestmark = pytest.mark.server

Connect = Callable[..., lockline.Client]


def test_what_is_prepared_for_names_and_metadata_is_bounded_in_bytes(server: RedisServer) -> None:
    backend = connect_backend(server.url, BlockingRuntime())
    backend.report_to(Hints(BlockingRuntime(), None, lambda: None))
    until = clock.now() + 60
    for n in range(sample(1500, 2500)):
        claim = Claim(f"{n}-" + "x" * 500, f"c-{n}", "me", "lock", 1, 1, 10.0, 0.0, f'{{"n": "{n:03900}"}}')
        run(backend.enter(claim, wait=False, until=until))
        run(backend.leave(claim, until))
    kept = sum(len(text) + len(str(wish)) for wish, text in backend._wishes.items())
    assert 0 < kept < 2 * ROOM
    prepared = sum(2 * len(line.key) + len(line.enter) + len(line.leave) for line in backend._lines.values())
    assert 0 < prepared < ROOM
    run(backend.close())


def test_a_turn_that_comes_while_its_claim_is_given_up_is_not_kept(server: RedisServer) -> None:
    backend = connect_backend(server.url, BlockingRuntime())
    backend.report_to(Hints(BlockingRuntime(), None, lambda: None))
    until = clock.now() + 60
    first = Claim("x", "c-1", "me", "lock", 1, 1, 10.0, 0.0, "")
    second = first._replace(id="c-2")
    run(backend.enter(first, wait=False, until=until))
    assert type(run(backend.enter(second, wait=True, until=until))) is Waiting
    backend._take_note("c-2 17")
    # As after a cancel: nobody waits for it any more, and the message had been read.
    run(backend.leave(second, until))
    assert "c-2" not in backend._claims
    backend._take_note("c-2 18")
    assert "c-2" not in backend._claims
    run(backend.leave(first, until))
    run(backend.close())


def test_cancelled_waits_leave_nothing_behind_in_the_client(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "GRACE", 10.0)
    holder, waiter = town.near(), town.near()
    lease = holder.lock("x").acquire()
    for _ in range(20):
        with pytest.raises(lockline.AcquireTimeout):
            waiter.lock("x").acquire(timeout=0.01)
    lease.release()
    backend = waiter.client.real._engine.backend
    wait_for(lambda: not backend._claims, 60, "an empty client")
    assert not backend._doubts
