"""More threads and tasks than a client has connections: all are served, in order, and no lease is lost on a healthy server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import lockline
from lockline.backends.sql import backend as backend_module
from tests.renewed import renewal_of
from tests.servers.process import wait_for
from tests.tier import sample

from .conftest import SERVERS, Store

pytestmark = pytest.mark.server

TTL = 12.0
"""Of a lease that has to stay: these servers go by the machine's wall clock, which may be set forward by seconds."""
REST = sample(0.2, 0.0)
"""Seconds between two locks of one that is busy: fifty of them still come in bursts, and the machine has time for other tests."""


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """All at once; the first problem of any of them comes out."""
    problems: list[BaseException] = []

    def one(number: int) -> None:
        try:
            work(number)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=one, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    if problems:
        raise problems[0]


@pytest.mark.parametrize(("count", "connections"), sample([(25, 1), (50, 4)], [(50, 1), (300, 4)]))
def test_more_threads_than_connections_get_the_lock_one_after_the_other(
    store: Store, count: int, connections: int
) -> None:
    tokens: list[int] = []
    inside = threading.Semaphore(1)

    def work(_: int) -> None:
        with client.lock("one", timeout=110) as lease:
            assert inside.acquire(blocking=False)
            tokens.append(lease.token)
            lease.check()
            inside.release()

    with lockline.connect(store.url(max_connections=connections)) as client:
        in_threads(count, work)
        assert tokens == sorted(set(tokens))
        assert len(tokens) == count
        assert client.list() == []


@pytest.mark.parametrize("store", SERVERS, indirect=True)
def test_many_threads_with_a_lock_each_keep_all_of_them(store: Store) -> None:
    count = sample(60, 300)
    all_hold = threading.Barrier(count, timeout=200)
    leases: list[lockline.Lease] = []

    def work(number: int) -> None:
        with client.lock(f"n{number}", ttl=TTL) as lease:
            leases.append(lease)
            if not all_hold.wait():
                # One looks for all: sixty that look are a load of their own.
                wait_for(renewal_of(*leases), 120, "a renewal of each")
            all_hold.wait()

    with lockline.connect(store.url()) as client:
        in_threads(count, work)
        assert client.list() == []


@pytest.mark.parametrize("names", [1, 600])
def test_a_burst_of_tasks_is_served(store: Store, names: int) -> None:
    count = sample(60, 600)

    async def story() -> None:
        tokens: dict[str, list[int]] = {}

        async def work(number: int) -> None:
            name = f"n{number % names}"
            async with client.lock(name, timeout=110) as lease:
                tokens.setdefault(name, []).append(lease.token)
                lease.check()

        async with lockline.aio.connect(store.url()) as client:
            await asyncio.gather(*map(work, range(count)))
            assert sum(map(len, tokens.values())) == count
            assert all(each == sorted(set(each)) for each in tokens.values())
            assert await client.list() == []

    asyncio.run(story())


@pytest.mark.parametrize("store", ["pgbouncer", "mysql"], indirect=True)
def test_where_nothing_is_pushed_a_newcomer_that_has_to_wait_asks_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to its coming says where it stands, and those ahead are of its own client: there is nothing more to ask."""
    monkeypatch.setattr(backend_module, "NET", 3600.0)

    async def story() -> None:
        asked: list[str] = []
        async with lockline.aio.connect(store.url()) as client:
            backend: Any = client._engine.backend
            channel = backend.channel
            run = channel.run

            async def noted(call: Any, *args: Any, **how: Any) -> Any:
                asked.append(call.routine)
                return await run(call, *args, **how)

            async def one() -> None:
                await (await client.lock("x", ttl=600).acquire(timeout=120)).release()

            async def crowd(count: int) -> None:
                held = await client.lock("x", ttl=600).acquire()
                waits = asyncio.gather(*(one() for _ in range(count)))
                while len((await client.inspect("x")).waiters) < count:  # noqa: ASYNC110 - nobody says when
                    await asyncio.sleep(0.01)
                await held.release()
                await waits

            await crowd(1)  # by now it is known that nothing can be pushed here
            channel.run = noted
            await crowd(30)
            assert asked.count("enter") == asked.count("leave") == 31
            assert asked.count("place") == 0

    asyncio.run(story())


@pytest.mark.parametrize("store", SERVERS, indirect=True)
def test_a_keeper_gets_its_turn_beside_fifty_busy_threads(store: Store) -> None:
    over = threading.Event()

    def work(number: int) -> None:
        if number:
            while not over.is_set():
                client.lock(f"busy{number}").acquire(timeout=60).release()
                over.wait(REST)
            return
        try:
            with client.lock("held", ttl=TTL) as lease:
                wait_for(renewal_of(lease), 60, "a renewal")
        finally:
            over.set()

    with lockline.connect(store.url(max_connections=2)) as client:
        in_threads(50, work)


def test_what_many_gave_up_costs_the_next_one_nothing(store: Store) -> None:
    """Tries in vain and waits that timed out leave no row, and no note on the client."""
    url = store.url()
    with lockline.connect(url) as client, lockline.connect(url) as other:
        with client.lock("held", ttl=60):
            for _ in range(sample(40, 450)):
                assert other.lock("held").try_acquire() is None
            for _ in range(sample(10, 50)):
                # A database that is too busy to answer in this time is another reason to give up, and leaves as little.
                with pytest.raises((lockline.AcquireTimeout, lockline.BackendUnavailable)):
                    other.lock("held").acquire(timeout=0.001)
            wait_for(lambda: len(client.inspect("held").claims) == 1, 60, "the end of what was given up")
        backend: Any = other._engine.backend
        wait_for(lambda: not backend._claims, 60, "no claim")
        wait_for(lambda: not backend._doubts, 60, "no doubt")
        other.lock("held").acquire(timeout=60).release()
