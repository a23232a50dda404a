"""No answer is its own answer: what may have been applied is found again, or withdrawn."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable

import pytest

import lockline
from lockline import BackendUnavailable, aio
from lockline.core.claim import Gone

from ..calm import calm
from ..renewed import renewal_of
from ..servers.process import wait_for
from ..servers.proxy import Proxy

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


@pytest.fixture
def through(proxy: Proxy, url: str) -> str:
    """The same place, by way of the proxy."""
    return f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}"


def test_a_create_whose_reply_was_lost_is_found_again_and_not_doubled(
    proxy: Proxy, through: str, url: str, client_of: Clients
) -> None:
    client, observer = client_of(through), client_of(url)
    client.lock("x").acquire().release()
    for number in range(5):
        proxy.drop_reply(b"/lockline/x/1.1.")
        lease = client.lock("x").acquire(timeout=60)
        assert proxy.lost == number + 1
        (held,) = observer.inspect("x").claims
        assert (held.id, held.token) == (lease.id, lease.token)
        lease.release()
        assert not observer.inspect("x").claims


def test_a_waiter_whose_create_was_not_answered_keeps_the_place_it_got(
    proxy: Proxy, through: str, url: str, client_of: Clients
) -> None:
    client, other = client_of(through), client_of(url)
    client.lock("y").acquire().release()
    held = other.lock("x").acquire()
    proxy.drop_reply(b"/lockline/x/1.1.")
    got: list[lockline.Lease] = []
    waiter = threading.Thread(target=lambda: got.append(client.lock("x").acquire(timeout=60)))
    waiter.start()
    wait_for(lambda: len(other.inspect("x").waiters) == 1)
    first = other.inspect("x").waiters[0]
    # It has asked again, found its node and watches the one ahead.
    waiters = client._engine.backend._subscription._waiters  # type: ignore[attr-defined]
    wait_for(lambda: any(list(waiters.values())), 60, "a watch")
    assert proxy.lost == 1
    assert [claim.id for claim in other.inspect("x").waiters] == [first.id]
    held.release()
    waiter.join(60)
    assert got[0].token == first.token
    got[0].release()


def test_a_delete_whose_reply_was_lost_is_a_release(proxy: Proxy, through: str, url: str, client_of: Clients) -> None:
    client, observer = client_of(through), client_of(url)
    lease = client.lock("x").acquire()
    proxy.drop_reply(b"/lockline/x/1.1.")
    lease.release()
    assert proxy.lost == 1
    assert not observer.inspect("x").claims


def test_an_acquire_that_gave_up_on_a_black_hole_leaves_nothing_when_the_line_heals(
    proxy: Proxy, through: str, url: str, client_of: Clients
) -> None:
    client, observer = client_of(through), client_of(url)
    client.lock("x").acquire().release()
    proxy.black_hole()
    with pytest.raises(BackendUnavailable):
        client.lock("x", ttl=3600).acquire(timeout=0.5)
    # What was held up arrives after all.
    proxy.heal()
    wait_for(lambda: not observer.inspect("x").claims, 60, "an empty line")
    observer.lock("x").acquire(timeout=60).release()
    assert not observer.inspect("x").claims


def test_a_cancelled_acquire_leaves_nothing(proxy: Proxy, through: str, url: str, client_of: Clients) -> None:
    observer = client_of(url)

    async def story() -> None:
        async with aio.connect(through) as client:
            await (await client.lock("x").acquire()).release()
            for moment in (0.0, 0.01, 0.03, 0.06, 0.1):
                proxy.delay(0.03)
                task = asyncio.create_task(client.lock("x").acquire())
                await asyncio.sleep(moment)
                task.cancel()
                lease = (await asyncio.gather(task, return_exceptions=True))[0]
                if isinstance(lease, aio.Lease):
                    await lease.release()
                proxy.heal()
                await asyncio.to_thread(
                    wait_for, lambda: not observer.inspect("x").claims, 60, f"an empty line ({moment})"
                )

    asyncio.run(story())


def test_a_server_that_is_not_there_is_an_error_by_the_callers_deadline(proxy: Proxy, client_of: Clients) -> None:
    proxy.refuse()
    client = client_of(f"zk://127.0.0.1:{proxy.port}")
    with pytest.raises(BackendUnavailable, match="gave a session in time"):
        client.lock("x", ttl=3600).acquire(timeout=0.3)
    with pytest.raises(BackendUnavailable):
        client.lock("x", ttl=3600).try_acquire()
    proxy.heal()
    client.lock("x").acquire(timeout=60).release()


def test_renewal_outlives_connections_that_break(proxy: Proxy, through: str, client_of: Clients) -> None:
    """Longer than 5 s: the renewal comes after a third of the ttl, of 15 s, and connections break all the time until it was confirmed."""
    client = client_of(through)
    lease = client.lock("x", ttl=15).acquire()
    kept, until = renewal_of(lease), calm() + 60
    while not kept() and calm() < until:
        before = proxy.accepted
        proxy.cut()
        wait_for(lambda before=before: proxy.accepted > before, 60, "another connection")  # type: ignore[misc]
        time.sleep(0.3)
    assert kept()
    assert lease.valid
    lease.release()


def test_a_waiter_hears_of_its_turn_over_a_connection_that_broke_while_it_waited(
    proxy: Proxy, through: str, url: str, client_of: Clients
) -> None:
    client, other = client_of(through), client_of(url)
    held = other.lock("x").acquire()
    got: list[lockline.Lease] = []
    waiter = threading.Thread(target=lambda: got.append(client.lock("x").acquire(timeout=60)))
    waiter.start()
    wait_for(lambda: len(other.inspect("x").waiters) == 1)
    # The release falls into the gap: no watch is there to tell of it.
    proxy.refuse()
    proxy.cut()
    held.release()
    proxy.heal()
    waiter.join(60)
    assert got
    assert got[0].valid
    got[0].release()


def test_a_release_whose_reply_was_lost_is_one_although_a_renewal_finds_the_claim_gone_meanwhile(
    proxy: Proxy, through: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(through)
    lease = client.lock("x", ttl=30).acquire()
    backend = client._engine.backend
    channel = backend._channel  # type: ignore[attr-defined]
    connected = channel.connected
    fates: list[object] = []
    releases = itertools.count()

    async def connected_again(ttl: float | None, until: float, *, insist: bool = True, tried: bool = False) -> object:
        session = await connected(ttl, until, insist=insist, tried=tried)
        if tried and next(releases) == 0:
            # The keeper was at it when the release began.
            fates.extend(await backend.renew([lease._live.claim], until))
        return session

    monkeypatch.setattr(channel, "connected", connected_again)
    proxy.drop_reply(b"/lockline/x/1.1.")
    lease.release()
    assert isinstance(fates[0], Gone)
