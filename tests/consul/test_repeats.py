"""Answers that are lost and requests that arrive late: each does its work once, and takes nothing back."""

from __future__ import annotations

import threading

import pytest

import lockline
from lockline.core.claim import Claim, Grant
from lockline.runtime.blocking import run

from ..contract.scene import Scene
from ..contract.worlds import Place
from ..renewed import renewal_of, wait_for_renewal
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
    with client.lock("x").acquire(timeout=60) as lease:
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
    """Longer than 5 s for the session, which is renewed when most of its time is over."""
    client = client_of(through)
    lease = client.lock("x", ttl=5).acquire()
    proxy.drop_reply(containing)
    wait_for(lambda: proxy.lost == 1, 60)
    wait_for_renewal(lease)
    lease.release()


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
@pytest.mark.parametrize("instead", [b"", UNAVAILABLE], ids=["lost", "500"])
def test_a_release_that_keeps_the_name_makes_one_session_although_its_answer_was_lost(
    consul: ConsulCluster, through: str, proxy: Proxy, flavour: str, instead: bytes
) -> None:
    scene = Scene(Place(through), flavour)
    try:
        holder = scene.party()
        lease = holder.lock("x", ttl=60, keep_for=30).acquire()
        before = sessions(consul)
        proxy.spoil_reply(instead, b'"unlock"')
        lease.release()
        assert proxy.lost == 1
        assert sessions(consul) == before + 1
        (kept,) = holder.client.inspect("x").claims
        assert kept.token == lease.token
    finally:
        scene.finish()


def sessions(consul: ConsulCluster) -> int:
    """How many there are."""
    return len(consul.servers[0].ask("session/list"))


def test_an_eviction_whose_answer_was_lost_is_counted_and_spares_the_next(
    url: str, through: str, proxy: Proxy, client_of: Clients
) -> None:
    holder, waiter, operator = client_of(url), client_of(url), client_of(through)
    lease = holder.lock("x", ttl=60).acquire()
    granted: list[lockline.Lease] = []
    thread = threading.Thread(target=lambda: granted.append(waiter.lock("x", ttl=60).acquire(timeout=60)), daemon=True)
    thread.start()
    wait_for(lambda: holder.inspect("x").waiters)
    proxy.drop_reply(b"evicted")
    assert operator.evict("x") == 1
    assert proxy.lost == 1
    thread.join(60)
    wait_for(lambda: not lease.valid, 60)
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
    claim = Claim("x", "one-1", "me", "lock", 1, 1, 60.0, 0.0, "")
    now = client._engine.runtime.now
    with pytest.raises(lockline.BackendUnavailable):
        run(backend.enter(claim, wait=True, until=now() + 60))
    run(backend.leave(claim, now() + 60))
    answer = run(transact(held_up[0], now() + 60))  # type: ignore[arg-type]
    assert answer.failed
    assert not client.inspect("x").claims


def test_the_same_claim_again_gives_the_same_answer(url: str, client_of: Clients) -> None:
    client = client_of(url)
    backend, now = backend_of(client), client._engine.runtime.now
    claim = Claim("x", "one-1", "me", "lock", 1, 1, 60.0, 0.0, "")
    first = run(backend.enter(claim, wait=True, until=now() + 60))
    assert isinstance(first, Grant)
    assert run(backend.enter(claim, wait=True, until=now() + 60)) == first
    assert run(backend.enter(claim, wait=False, until=now() + 60)) == first
    assert run(backend.leave(claim, now() + 60))
    assert not run(backend.leave(claim, now() + 60))


def test_a_holder_outlives_an_agent_that_is_silent_for_less_than_the_ttl(
    through: str, proxy: Proxy, client_of: Clients
) -> None:
    client = client_of(through)
    lease = client.lock("x", ttl=9).acquire()
    kept, before = renewal_of(lease), proxy.requests
    proxy.black_hole()
    wait_for(lambda: proxy.requests > before, 60, "a renewal that nobody answers")
    proxy.heal()
    proxy.cut()
    wait_for(kept, 60, "one that is answered")
    lease.release()


def test_a_silent_agent_costs_the_lease_at_its_own_deadline_and_no_later(
    through: str, proxy: Proxy, client_of: Clients
) -> None:
    """Longer than 5 s: so is the ttl, within which the first answer has to come."""
    client = client_of(through)
    lease = client.lock("x", ttl=5).acquire()
    proxy.black_hole()
    assert lease.lost.wait(60)
    proxy.heal()
    proxy.cut()


def test_another_agent_is_asked_when_the_first_is_not_there(
    consul: ConsulCluster, prefix: str, client_of: Clients
) -> None:
    client = client_of(f"consul://127.0.0.1:{free_port()},127.0.0.1:{consul.servers[0].port}/{prefix}?session_ttl=1")
    with client.lock("x").acquire(timeout=60) as lease:
        assert lease.valid


def test_nothing_is_left_of_a_wait_that_was_given_up(
    consul: ConsulCluster, url: str, prefix: str, client_of: Clients
) -> None:
    lease = client_of(url).lock("x", ttl=60).acquire()
    # A server that is too busy to answer in this time is another reason to give up, and leaves as little.
    with pytest.raises((lockline.AcquireTimeout, lockline.BackendUnavailable)):
        client_of(url).lock("x").acquire(timeout=1)
    # What could not be withdrawn in the caller's own time is removed in the background.
    wait_for(lambda: len(keys_under(consul, f"{prefix}/claims/")) == 1)
    lease.release()
