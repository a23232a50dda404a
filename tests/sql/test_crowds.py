"""More threads and tasks than a client has connections: all are served, in order, and no lease is lost on a healthy server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import lockline

from .conftest import Store

pytestmark = pytest.mark.server


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


@pytest.mark.parametrize(("count", "connections"), [(50, 1), (300, 4)])
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


def test_three_hundred_threads_with_a_lock_each_keep_all_of_them(store: Store) -> None:
    ttl = 3.0
    all_hold = threading.Barrier(300, timeout=100)

    def work(number: int) -> None:
        with client.lock(f"n{number}", ttl=ttl) as lease:
            all_hold.wait()
            assert not lease.lost.wait(1.2 * ttl)
            lease.check()

    with lockline.connect(store.url()) as client:
        in_threads(300, work)
        assert client.list() == []


@pytest.mark.parametrize("names", [1, 600])
def test_a_burst_of_six_hundred_tasks_is_served(store: Store, names: int) -> None:
    async def story() -> None:
        tokens: dict[str, list[int]] = {}

        async def work(number: int) -> None:
            name = f"n{number % names}"
            async with client.lock(name, timeout=110) as lease:
                tokens.setdefault(name, []).append(lease.token)
                lease.check()

        async with lockline.aio.connect(store.url()) as client:
            await asyncio.gather(*map(work, range(600)))
            assert sum(map(len, tokens.values())) == 600
            assert all(each == sorted(set(each)) for each in tokens.values())
            assert await client.list() == []

    asyncio.run(story())


def test_a_keeper_gets_its_turn_beside_fifty_busy_threads(store: Store) -> None:
    over = threading.Event()

    def work(number: int) -> None:
        if number:
            while not over.is_set():
                client.lock(f"busy{number}").acquire(timeout=60).release()
            return
        try:
            with client.lock("held", ttl=2) as lease:
                assert not lease.lost.wait(4)
                lease.check()
        finally:
            over.set()

    with lockline.connect(store.url(max_connections=2)) as client:
        in_threads(50, work)


def test_what_five_hundred_gave_up_costs_the_next_one_nothing(store: Store) -> None:
    """Tries in vain and waits that timed out leave no row, and no note on the client."""
    url = store.url()
    with lockline.connect(url) as client, lockline.connect(url) as other:
        with client.lock("held", ttl=60):
            for _ in range(450):
                assert other.lock("held").try_acquire() is None
            for _ in range(50):
                with pytest.raises(lockline.AcquireTimeout):
                    other.lock("held").acquire(timeout=0.001)
            assert len(client.inspect("held").claims) == 1
        backend: Any = other._engine.backend
        assert not backend._claims
        assert not backend._doubts
        other.lock("held").acquire(timeout=20).release()
