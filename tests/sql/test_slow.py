"""Slow, not dead: answers that take their time, a server that stands still for less and for more than a ttl, a pooler that starts anew."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import lockline
from lockline import AcquireTimeout, BackendUnavailable
from lockline.core.claim import Claim, Grant
from lockline.runtime.blocking import run
from tests.bursts import is_served_whole
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy
from tests.tier import sample

from .conftest import SERVERS, STORES, Store

pytestmark = pytest.mark.server


@pytest.mark.parametrize("store", SERVERS, indirect=True)
def test_with_answers_after_seven_tenths_of_a_second_everything_works_and_few_connections_are_made(
    store: Store, proxy: Proxy
) -> None:
    # With more patience than default: what a busy machine adds to an answer is no reason for another connection.
    with lockline.connect(store.through(proxy, timeout=30)) as client:
        client.lock("warm").acquire().release()
        proxy.delay(0.35)
        with client.lock("x", ttl=30, timeout=60) as lease:
            lease.extend(40)
            lease.check()
        assert proxy.accepted <= 7  # four for steps, two for renewals, one that listens
        proxy.heal()
        wait_for(lambda: client.list() == [], 60, "an empty line")


@pytest.mark.parametrize("store", SERVERS, indirect=True)
def test_the_same_in_asyncio_with_a_crowd(store: Store, proxy: Proxy) -> None:
    """Longer than 5 s on a busy machine: those who come second for a name get half a dozen such answers after each other."""

    async def story() -> None:
        async with lockline.aio.connect(store.through(proxy, timeout=30)) as client:
            await (await client.lock("warm").acquire()).release()
            proxy.delay(0.35)

            async def work(number: int) -> None:
                async with client.lock(f"n{number % 4}", ttl=60, timeout=60) as lease:
                    lease.check()

            await asyncio.gather(*(work(number) for number in range(8)))
            assert proxy.accepted <= 7  # as above
            proxy.heal()
            assert await client.list() == []

    asyncio.run(story())


@pytest.mark.parametrize(
    ("store", "names"),
    sample([("postgresql", 1), ("mysql", 30)], [(store, names) for store in STORES for names in (1, 30)]),
    indirect=["store"],
)
def test_a_burst_that_takes_longer_than_a_ttl_is_served_whole(store: Store, proxy: Proxy, names: int) -> None:
    """Thirty stand in line for one connection: the last of them asks after more than a ttl, and nobody was silent.

    Longer than 5 s: it takes each of them 0.4 s on the one connection, and a ttl is 10 s.
    """
    is_served_whole(store.through(proxy, max_connections=1), proxy, delay=0.1, tasks=30, names=names, ttl=10)


@pytest.mark.parametrize("store", ["postgresql", "mysql"], indirect=True)
@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_renewals_that_find_every_connection_at_its_login_are_answered_once_one_is_there(
    store: Store, proxy: Proxy, flavour: str
) -> None:
    """They come one by one, and only two may log in at once: the others wait for that, and are not cut short then."""
    url, each = store.through(proxy), 3.0
    claims = [Claim(f"n{number}", f"{flavour}-{number}", "me", "lock", 1, 1, 60.0, 0.0, "") for number in range(6)]

    async def enter_all(backend: Any) -> None:
        for claim in claims:
            assert isinstance(await backend.enter(claim, wait=False, until=backend.now() + 20), Grant)
        proxy.delay(0.5)

    def renew(backend: Any, claim: Claim) -> Any:
        return backend.renew([claim], backend.now() + each)

    async def in_tasks() -> list[Any]:
        async with lockline.aio.connect(url) as client:
            backend = client._engine.backend
            await enter_all(backend)
            fates = await asyncio.gather(*(renew(backend, claim) for claim in claims))
            proxy.heal()
            return fates

    if flavour == "asyncio":
        fates = asyncio.run(in_tasks())
    else:
        with lockline.connect(url) as client, ThreadPoolExecutor(len(claims)) as threads:
            backend = client._engine.backend
            run(enter_all(backend))
            fates = list(threads.map(lambda claim: run(renew(backend, claim)), claims))
            proxy.heal()
    assert [list(fate) for fate in fates] == [[None]] * len(claims)


def test_a_server_that_stands_still_for_less_than_a_ttl_costs_no_lease(store: Store) -> None:
    with lockline.connect(store.url()) as client:
        lease = client.lock("x", ttl=30).acquire()
        store.server.freeze()
        try:
            assert not lease.lost.wait(2.5)
        finally:
            store.server.thaw()
        lease.extend(30)
        lease.release()


@pytest.mark.parametrize("store", SERVERS, indirect=True)
def test_a_server_that_stands_still_for_longer_costs_it_on_time_and_nobody_is_stuck_after(store: Store) -> None:
    """Longer than 5 s: so is the ttl, which ends while the server stands still."""
    url = store.url()
    with lockline.connect(url) as client, lockline.connect(url) as other:
        lease = client.lock("x", ttl=5).acquire()
        got: list[lockline.Lease] = []
        thread = threading.Thread(target=lambda: got.append(other.lock("x", ttl=30).acquire(timeout=60)))
        thread.start()
        wait_for(lambda: len(client.inspect("x").waiters) == 1, 60, "a waiter")
        store.server.freeze()
        try:
            assert lease.lost.wait(60)
            with pytest.raises((AcquireTimeout, BackendUnavailable)):
                client.lock("y").acquire(timeout=0.5)
            assert not got
        finally:
            store.server.thaw()
        thread.join(60)
        assert got[0].token > lease.token
        got[0].release()


def test_a_frozen_server_does_not_outlast_the_time_that_was_said(store: Store) -> None:
    with lockline.connect(store.url()) as client:
        client.lock("warm").acquire().release()
        store.server.freeze()
        try:
            # One that waited for the server's answer would hang here.
            with pytest.raises((AcquireTimeout, BackendUnavailable)):
                client.lock("x", ttl=3600).acquire(timeout=0.3)
        finally:
            store.server.thaw()
        wait_for(lambda: client.list() == [], 60, "the end of what was withdrawn")


@pytest.mark.parametrize("store", ["pgbouncer"], indirect=True)
def test_a_pooler_that_starts_anew_costs_no_lease_and_no_place(store: Store) -> None:
    assert store.pooler is not None
    url = store.url()
    with lockline.connect(url) as client, lockline.connect(url) as other:
        lease = client.lock("x", ttl=60).acquire()
        got: list[lockline.Lease] = []
        thread = threading.Thread(target=lambda: got.append(other.lock("x").acquire(timeout=60)))
        thread.start()
        wait_for(lambda: len(client.inspect("x").waiters) == 1, 60, "a waiter")
        place = client.inspect("x").waiters[0].token
        store.pooler.kill()
        store.pooler.start()
        lease.extend(60)
        lease.release()
        thread.join(60)
        assert got[0].token == place
        got[0].release()
