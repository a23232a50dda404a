"""Slow, not dead: answers that take their time, a server that stands still for less and for more than a ttl, a pooler that starts anew."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import lockline
from lockline import AcquireTimeout, BackendUnavailable
from tests.calm import calm
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy

from .conftest import Store

pytestmark = pytest.mark.server


def test_with_answers_after_seven_tenths_of_a_second_everything_works_and_few_connections_are_made(
    store: Store, proxy: Proxy
) -> None:
    with lockline.connect(store.through(proxy)) as client:
        client.lock("warm").acquire().release()
        proxy.delay(0.35)
        with client.lock("x", ttl=5, timeout=20) as lease:
            lease.extend(6)
            lease.check()
        assert proxy.accepted <= 7  # four for steps, two for renewals, one that listens
        proxy.heal()
        wait_for(lambda: client.list() == [], 20, "an empty line")


def test_the_same_in_asyncio_with_a_crowd(store: Store, proxy: Proxy) -> None:
    async def story() -> None:
        async with lockline.aio.connect(store.through(proxy)) as client:
            await (await client.lock("warm").acquire()).release()
            proxy.delay(0.35)

            async def work(number: int) -> None:
                async with client.lock(f"n{number % 4}", ttl=20, timeout=60) as lease:
                    lease.check()

            await asyncio.gather(*(work(number) for number in range(8)))
            assert proxy.accepted <= 9  # and one or two that were given up
            proxy.heal()
            assert await client.list() == []

    asyncio.run(story())


def test_a_server_that_stands_still_for_less_than_a_ttl_costs_no_lease(store: Store) -> None:
    with lockline.connect(store.url()) as client:
        lease = client.lock("x", ttl=6).acquire()
        store.server.freeze()
        try:
            assert not lease.lost.wait(2.5)
        finally:
            store.server.thaw()
        lease.extend(6)
        lease.release()


def test_a_server_that_stands_still_for_longer_costs_it_on_time_and_nobody_is_stuck_after(store: Store) -> None:
    url = store.url()
    with lockline.connect(url) as client, lockline.connect(url) as other:
        lease = client.lock("x", ttl=1).acquire()
        got: list[lockline.Lease] = []
        thread = threading.Thread(target=lambda: got.append(other.lock("x", ttl=30).acquire(timeout=60)))
        thread.start()
        wait_for(lambda: len(client.inspect("x").waiters) == 1, 20, "a waiter")
        store.server.freeze()
        try:
            began = calm()
            assert lease.lost.wait(10)
            assert calm() - began < 1.5
            with pytest.raises((AcquireTimeout, BackendUnavailable)):
                client.lock("y").acquire(timeout=0.5)
            time.sleep(1)
            assert not got
        finally:
            store.server.thaw()
        thread.join(20)
        assert got[0].token > lease.token
        got[0].release()


def test_a_frozen_server_does_not_outlast_the_time_that_was_said(store: Store) -> None:
    with lockline.connect(store.url()) as client:
        client.lock("warm").acquire().release()
        store.server.freeze()
        try:
            began = calm()
            with pytest.raises((AcquireTimeout, BackendUnavailable)):
                client.lock("x").acquire(timeout=0.3)
            assert calm() - began < 1.5
        finally:
            store.server.thaw()
        wait_for(lambda: client.list() == [], 20, "the end of what was withdrawn")


@pytest.mark.parametrize("store", ["pgbouncer"], indirect=True)
def test_a_pooler_that_starts_anew_costs_no_lease_and_no_place(store: Store) -> None:
    assert store.pooler is not None
    url = store.url()
    with lockline.connect(url) as client, lockline.connect(url) as other:
        lease = client.lock("x", ttl=10).acquire()
        got: list[lockline.Lease] = []
        thread = threading.Thread(target=lambda: got.append(other.lock("x").acquire(timeout=60)))
        thread.start()
        wait_for(lambda: len(client.inspect("x").waiters) == 1, 20, "a waiter")
        place = client.inspect("x").waiters[0].token
        store.pooler.kill()
        store.pooler.start()
        lease.extend(10)
        lease.release()
        thread.join(30)
        assert got[0].token == place
        got[0].release()
