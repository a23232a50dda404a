"""A Redis that is not there, and one that is silent: which it was, how long it took, and whether anything was sent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lockline
from lockline.backends.redis import RedisBackend, connect
from lockline.core.backend import REFUSAL
from lockline.core.claim import Claim, Grant
from lockline.runtime import clock
from lockline.runtime.blocking import BlockingRuntime, run
from tests.servers.process import free_port, wait_for
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.tier import sample

from .conftest import Town

pytestmark = pytest.mark.server

LONG = 900.0
"""What a call is given that is over after a moment: one that insisted would take all of it, which is more than a test may."""
A_MINUTE = 60.0
MOMENT = REFUSAL + 0.3
"""More than a refusal takes."""


def a_claim(name: str = "x", claim_id: str = "c-1", ttl: float = 10.0) -> Claim:
    return Claim(name, claim_id, "me", "lock", 1, 1, ttl, 0.0, "")


Call = Callable[[RedisBackend, float], Any]

CALLS: dict[str, Call] = {
    "enter": lambda backend, until: backend.enter(a_claim(), wait=False, until=until),
    "leave_all": lambda backend, until: backend.leave_all([a_claim(), a_claim("y")], until),
    "look": lambda backend, until: backend.look("x", until),
    "list": lambda backend, until: backend.list("", until),
    "evict": lambda backend, until: backend.evict("x", until),
}


@pytest.fixture(params=["redis", "sentinel", "cluster", "unix"])
def nowhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisBackend]:
    """A client of servers that are not there."""
    hosts = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
    urls = {
        "redis": f"redis://127.0.0.1:{free_port()}",
        "sentinel": f"redis+sentinel://{hosts}/lines",
        "cluster": f"redis+cluster://{hosts}",
        "unix": f"unix://{tmp_path}/redis.sock",
    }
    backend = connect(urls[request.param], BlockingRuntime())
    yield backend
    run(backend.close())


@pytest.mark.parametrize("call", CALLS)
def test_what_does_not_insist_says_soon_that_nobody_is_there(nowhere: RedisBackend, call: str) -> None:
    with pytest.raises(lockline.BackendUnavailable, match="cannot be reached") as told:
        run(CALLS[call](nowhere, clock.now() + LONG))
    assert told.value.unsent
    assert "in time" not in str(told.value)


def test_what_insists_goes_on_until_its_deadline_and_says_that_nothing_was_sent(nowhere: RedisBackend) -> None:
    calls: list[Call] = [
        lambda backend, until: backend.enter(a_claim(), wait=True, until=until),
        lambda backend, until: backend.leave(a_claim(), until),
    ]
    for call in calls:
        began = clock.now()
        with pytest.raises(lockline.BackendUnavailable, match="cannot be reached") as told:
            run(call(nowhere, began + 3 * REFUSAL))
        assert clock.now() - began > 2 * REFUSAL
        assert told.value.unsent
    assert not nowhere._doubts
    assert not nowhere._claims


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_went_away_while_we_were_idle_is_found_out_before_anything_is_sent(
    own_server: RedisServer, call: str
) -> None:
    backend = connect(own_server.url, BlockingRuntime())
    assert run(backend.list("", clock.now() + A_MINUTE)) == []
    own_server.stop()
    time.sleep(0.1)
    with pytest.raises(lockline.BackendUnavailable, match=r"cannot be reached: .*Connection refused") as told:
        run(CALLS[call](backend, clock.now() + LONG))
    assert told.value.unsent
    run(backend.close())


@pytest.mark.parametrize("call", CALLS)
def test_a_silent_server_is_waited_for_and_called_silent(server: RedisServer, call: str) -> None:
    with Proxy(server.address) as proxy:
        backend = connect(f"redis://127.0.0.1:{proxy.port}", BlockingRuntime())
        run(backend.list("", clock.now() + A_MINUTE))
        proxy.black_hole()
        began = clock.now()
        with pytest.raises(lockline.BackendUnavailable, match="gave no answer in time") as told:
            run(CALLS[call](backend, began + 2 * MOMENT))
        assert clock.now() - began > MOMENT
        assert not told.value.unsent, "it may have been received"
        run(backend.close())


def test_what_may_have_arrived_before_the_server_went_away_is_not_called_unsent(server: RedisServer) -> None:
    with Proxy(server.address) as proxy:
        backend = connect(f"redis://127.0.0.1:{proxy.port}", BlockingRuntime())
        run(backend.list("", clock.now() + A_MINUTE))
        proxy.black_hole()
        before = proxy.requests

        def go_away() -> None:
            wait_for(lambda: proxy.requests > before, 60, "the request on its way")
            proxy.refuse()
            proxy.cut()

        thread = threading.Thread(target=go_away)
        thread.start()
        with pytest.raises(lockline.BackendUnavailable) as told:
            run(backend.enter(a_claim(), wait=False, until=clock.now() + A_MINUTE))
        thread.join(60)
        assert not told.value.unsent
        assert "c-1" in backend._doubts
        run(backend.close())


def test_a_refused_connection_is_told_apart_from_silence_in_both_flavours(town: Town, flavour: str) -> None:
    port = free_port()
    url = f"redis://127.0.0.1:{port}"
    party = town.near()
    del party
    if flavour == "sync":
        with lockline.connect(url) as client, pytest.raises(lockline.BackendUnavailable) as told:
            client.lock("x").try_acquire()
    else:
        import asyncio

        async def story() -> Any:
            async with lockline.aio.connect(url) as client:
                with pytest.raises(lockline.BackendUnavailable) as told:
                    await client.lock("x").try_acquire()
                return told

        told = asyncio.run(story())
    assert str(told.value) == f"Redis cannot be reached: 127.0.0.1:{port}: Connection refused"
    assert told.value.unsent


def test_a_server_that_refuses_the_login_was_sent_nothing(server: RedisServer) -> None:
    server.command("ACL", "SETUSER", "nobody", "off", ">secret")
    backend = connect(f"redis://nobody:secret@127.0.0.1:{server.port}", BlockingRuntime())
    with pytest.raises(lockline.BackendUnavailable, match="WRONGPASS") as told:
        run(backend.enter(a_claim(), wait=False, until=clock.now() + A_MINUTE))
    assert told.value.unsent
    run(backend.close())


# -- many at once ----------------------------------------------------------------------------------

MANY = sample(400, 3000)


def test_thousands_of_claims_leave_in_a_few_trips(server: RedisServer) -> None:
    with Proxy(server.address) as proxy:
        backend = connect(f"redis://127.0.0.1:{proxy.port}", BlockingRuntime())
        until = clock.now() + 300
        claims = [a_claim(f"x{n}", f"c-{n}", ttl=300.0) for n in range(MANY)]
        for claim in claims:
            assert type(run(backend.enter(claim, wait=False, until=until))) is Grant
        server.command("SCRIPT", "FLUSH")
        before = proxy.requests
        assert run(backend.leave_all(claims, until)) == [True] * MANY
        assert proxy.requests - before < MANY / 5, "not one trip for each"
        assert run(backend.leave_all(claims[:10], until)) == [False] * 10
        assert run(backend.list("", until)) == []
        run(backend.close())


def test_a_spoilt_line_does_not_keep_the_others_from_leaving(server: RedisServer) -> None:
    backend = connect(server.url, BlockingRuntime())
    until = clock.now() + A_MINUTE
    claims = [a_claim(f"x{n}", f"c-{n}") for n in range(20)]
    for claim in claims:
        run(backend.enter(claim, wait=False, until=until))
    for spoilt in ("{ll:x0}", "{ll:x7}"):
        server.command("SET", spoilt, "somebody else's")
    with pytest.raises(lockline.BackendUnavailable, match="WRONGTYPE"):
        run(backend.leave_all(claims, until))
    assert run(backend.list("", until)) == []
    run(backend.close())


def test_a_claim_in_doubt_that_leaves_with_others_keeps_its_late_request_out(server: RedisServer) -> None:
    backend = connect(server.url, BlockingRuntime())
    until = clock.now() + A_MINUTE
    backend._doubts.add("c-1")
    assert run(backend.leave_all([a_claim("y", "c-2"), a_claim()], until)) == [False, False]
    assert not backend._doubts
    assert run(backend.enter(a_claim(), wait=False, until=until)) is None
    assert type(run(backend.enter(a_claim("y", "c-2"), wait=False, until=until))) is Grant
    run(backend.close())
