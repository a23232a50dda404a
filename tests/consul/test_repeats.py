"""Answers that are lost and requests that arrive late: each does its work once, and takes nothing back."""

from __future__ import annotations

import threading
import time

import pytest

import lockline
from lockline.core.claim import Claim, Grant
from lockline.runtime.blocking import run

from ..servers.consul import ConsulCluster
from ..servers.process import free_port, wait_for
from ..servers.proxy import Proxy
from .conftest import Clients, backend_of, keys_under

pytestmark = pytest.mark.server

UNAVAILABLE = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 17\r\n\r\nNo cluster leader"
TOO_MANY = b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 13\r\n\r\nslow down now"


@pytest.mark.parametrize("containing", [b"/session/create", b"check-not-exists"])
@pytest.mark.parametrize("instead", [b"", UNAVAILABLE, TOO_MANY], ids=["lost", "500", "429"])
def test_an_acquire_whose_answer_was_lost_is_asked_for_again_and_stands_once(
    through: str, url: str, proxy: Proxy, client_of: Clients, containing: bytes, instead: bytes
) -> None:
    client = client_of(through)
    proxy.spoil_reply(instead, containing)
    with client.lock("x").acquire(timeout=10) as lease:
        assert proxy.lost == 1
        (held,) = client_of(url).inspect("x").claims
        assert held.token == lease.token
    assert not client_of(url).inspect("x").claims


@pytest.mark.parametrize("instead", [b"", UNAVAILABLE], ids=["lost", "500"])
def test_a_release_whose_answer_was_lost_is_no_loss(through: str, url: str, proxy: Proxy, client_of: Clients, instead: bytes) -> None:  # fmt: skip
    client = client_of(through)
    lease = client.lock("x").acquire()
    proxy.spoil_reply(instead, b'"delete"')
    lease.release()
    assert proxy.lost == 1
    assert not client_of(url).inspect("x").claims


@pytest.mark.parametrize("containing", [b'"cas"', b"/session/renew"])
def test_a_renewal_whose_answer_was_lost_is_asked_for_again(
    through: str, proxy: Proxy, client_of: Clients, containing: bytes
) -> None:
    client = client_of(through)
    lease = client.lock("x", ttl=2.4).acquire()
    proxy.drop_reply(containing)
    wait_for(lambda: proxy.lost == 1, 10)
    began = time.monotonic()
    while time.monotonic() < began + 2.6:  # longer than what was confirmed before
        assert lease.valid
        time.sleep(0.05)
    lease.release()


def test_an_eviction_whose_answer_was_lost_is_counted_and_spares_the_next(
    url: str, through: str, proxy: Proxy, client_of: Clients
) -> None:
    holder, waiter, operator = client_of(url), client_of(url), client_of(through)
    lease = holder.lock("x", ttl=60).acquire()
    granted: list[lockline.Lease] = []
    thread = threading.Thread(target=lambda: granted.append(waiter.lock("x", ttl=60).acquire(timeout=20)), daemon=True)
    thread.start()
    wait_for(lambda: holder.inspect("x").waiters)
    proxy.drop_reply(b"evicted")
    assert operator.evict("x") == 1
    assert proxy.lost == 1
    thread.join(20)
    wait_for(lambda: not lease.valid, 10)
    assert granted[0].valid
    granted[0].release()


def test_a_claim_that_was_withdrawn_while_its_request_was_on_the_way_does_not_come_after_all(
    url: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(url)
    client.lock("warm").acquire().release()
    backend = backend_of(client)
    transact = backend._channel.transact
    held_up: list[object] = []

    async def late(steps, until, **more):  # type: ignore[no-untyped-def]
        if any(step["Verb"] == "check-not-exists" and "/x/" in step["Key"] for step in steps) and not held_up:
            held_up.append(steps)
            raise lockline.BackendUnavailable("no answer")
        return await transact(steps, until, **more)

    monkeypatch.setattr(backend._channel, "transact", late)
    claim = Claim("x", "one-1", "me", "lock", 1, 1, 5.0, 0.0, "")
    now = client._engine.runtime.now
    with pytest.raises(lockline.BackendUnavailable):
        run(backend.enter(claim, wait=True, until=now() + 5))
    run(backend.leave(claim, now() + 5))
    answer = run(transact(held_up[0], now() + 5))  # type: ignore[arg-type]
    assert answer.failed
    assert not client.inspect("x").claims


def test_the_same_claim_again_gives_the_same_answer(url: str, client_of: Clients) -> None:
    client = client_of(url)
    backend, now = backend_of(client), client._engine.runtime.now
    claim = Claim("x", "one-1", "me", "lock", 1, 1, 5.0, 0.0, "")
    first = run(backend.enter(claim, wait=True, until=now() + 5))
    assert isinstance(first, Grant)
    assert run(backend.enter(claim, wait=True, until=now() + 5)) == first
    assert run(backend.enter(claim, wait=False, until=now() + 5)) == first
    assert run(backend.leave(claim, now() + 5))
    assert not run(backend.leave(claim, now() + 5))


def test_a_holder_outlives_an_agent_that_is_silent_for_less_than_the_ttl(
    through: str, proxy: Proxy, client_of: Clients
) -> None:
    client = client_of(through)
    lease = client.lock("x", ttl=4).acquire()
    proxy.black_hole()
    time.sleep(1.5)
    proxy.heal()
    proxy.cut()
    began = time.monotonic()
    while time.monotonic() < began + 4:
        assert lease.valid
        time.sleep(0.1)
    lease.release()


def test_a_silent_agent_costs_the_lease_at_its_own_deadline_and_no_later(
    through: str, proxy: Proxy, client_of: Clients
) -> None:
    client = client_of(through)
    lease = client.lock("x", ttl=1).acquire()
    proxy.black_hole()
    assert lease.lost.wait(5)
    proxy.heal()
    proxy.cut()


def test_another_agent_is_asked_when_the_first_is_not_there(
    consul: ConsulCluster, prefix: str, client_of: Clients
) -> None:
    client = client_of(f"consul://127.0.0.1:{free_port()},127.0.0.1:{consul.servers[0].port}/{prefix}?session_ttl=1")
    with client.lock("x").acquire(timeout=20) as lease:
        assert lease.valid


def test_nothing_is_left_of_a_wait_that_was_given_up(
    consul: ConsulCluster, url: str, prefix: str, client_of: Clients
) -> None:
    lease = client_of(url).lock("x", ttl=60).acquire()
    with pytest.raises(lockline.AcquireTimeout):
        client_of(url).lock("x").acquire(timeout=0.3)
    # What could not be withdrawn in the caller's own time is removed in the background.
    wait_for(lambda: len(keys_under(consul, f"{prefix}/claims/")) == 1)
    lease.release()
