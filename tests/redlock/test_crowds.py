"""More threads than bundles, more tasks than a loop can hear in time, and tasks that cancel all others: no lease is late or lost."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import lockline
from lockline.backends.pool import SharedPool, Turn
from lockline.backends.redlock.channel_blocking import bundle_pool
from lockline.runtime import clock
from tests.servers.process import wait_for

from .servers import Servers, servers

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def five() -> Iterator[Servers]:
    with servers(5) as made:
        yield made


def connections(five: Servers) -> list[int]:
    """How many each server has, without the one that asks."""
    return [int(node.command("INFO", "clients")["connected_clients"]) - 1 for node in five.nodes]


@pytest.mark.slow
@pytest.mark.parametrize("threads", [5, 50, 300])
def test_busy_threads_never_make_a_held_lease_late_and_get_their_turns_in_order(five: Servers, threads: int) -> None:
    pairs: Counter[int] = Counter()
    problems: list[BaseException] = []
    over = threading.Event()
    with lockline.connect(five.url) as client:
        held = client.lock("held", ttl=4.0).acquire()

        def work(number: int) -> None:
            while not over.is_set():
                try:
                    client.lock(f"free-{number}").acquire(timeout=60).release()
                except lockline.LocklineError as problem:
                    problems.append(problem)
                pairs[number] += 1

        crowd = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in crowd:
            thread.start()
        # Long enough for one that was never renewed to be lost.
        until = time.monotonic() + 1.3 * held.ttl
        while time.monotonic() < until:
            assert held.valid
            time.sleep(0.05)
        over.set()
        for thread in crowd:
            thread.join(60)
        held.release()
    assert problems == []
    assert min(pairs[number] for number in range(threads)) * 3 + 3 >= max(pairs.values()), pairs


def test_a_burst_of_tasks_is_granted_whole_although_the_loop_hears_the_answers_late(five: Servers) -> None:
    async def story() -> None:
        # A machine that is busy with other tests starves the servers themselves for longer than the default; that is not the story here.
        async with lockline.aio.connect(five.url, node_timeout=1.0) as client:
            await (await client.lock("warm").acquire()).release()

            async def one(number: int) -> int:
                # A try asks once: nothing makes up for a server that was given up too early.
                lease = await client.lock(f"n{number}").try_acquire()
                assert lease is not None
                await lease.release()
                return int(lease.token)

            to_servers = client._engine.backend.channel.connections  # type: ignore[attr-defined]
            made = [connection.since for connection in to_servers]
            burst = asyncio.gather(*(one(number) for number in range(600)))
            await asyncio.sleep(0)
            # All requests are out, or about to be; now this loop is deaf for longer than a server may take.
            for _ in range(2):
                await asyncio.sleep(0.01)
                time.sleep(1.3)  # noqa: ASYNC251 - this is the point
            assert len(await burst) == 600
            assert [connection.since for connection in to_servers] == made, "a server that answers was taken for silent"

    asyncio.run(story())


@pytest.mark.slow
def test_a_thousand_waiters_of_one_client_are_all_granted(five: Servers, record_property: Any) -> None:
    async def story() -> None:
        before = connections(five)
        # A machine that is busy with other tests starves a server for longer than the default; that is not the story here.
        async with lockline.aio.connect(five.url, node_timeout=1.0) as client:

            async def one() -> int:
                lease = await client.lock("x", ttl=30).acquire(timeout=100)
                await lease.release()
                return int(lease.token)

            began = time.monotonic()
            held = await client.lock("x", ttl=30).acquire()
            waiting = [asyncio.create_task(one()) for _ in range(1000)]
            queues = client._engine.backend.lines._lines  # type: ignore[attr-defined]
            while len(queues.get("x", ())) < 1000:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            made = [now - then for then, now in zip(before, await asyncio.to_thread(connections, five), strict=True)]
            await held.release()
            tokens = await asyncio.gather(*waiting)
            assert len(set(tokens)) == 1000
            print(f"1000 of 1000 granted in {time.monotonic() - began:.1f} s over {made} connections")
            record_property("connections", made)
            assert made == [1] * 5

    asyncio.run(story())


def test_a_program_that_cancels_all_other_tasks_keeps_its_lease(five: Servers) -> None:
    async def story() -> None:
        async with lockline.aio.connect(five.url) as client, lockline.aio.connect(five.url) as operator:
            async with client.lock("x", ttl=2.5) as lease:
                waiter = asyncio.create_task(operator.lock("x", ttl=2.5).acquire(timeout=0.3))
                with contextlib.suppress(lockline.AcquireTimeout):
                    await waiter
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                until = clock.now() + 1.2 * lease.ttl
                while clock.now() < until:
                    assert lease.valid
                    await asyncio.sleep(0.05)
            second = await operator.lock("x", ttl=10).acquire(timeout=20)
            # Whoever waits hears of the release, by ears that were begun again.
            third = asyncio.create_task(client.lock("x", ttl=10).acquire(timeout=20))
            queues = client._engine.backend.lines._lines  # type: ignore[attr-defined]
            while not queues:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await second.release()
            await (await third).release()

    asyncio.run(story())


# -- the pool by itself ----------------------------------------------------------------------------


class FakeBundle:
    """As much of a bundle as a pool looks at."""

    def __init__(self) -> None:
        self.gone = False
        self.began = clock.now()


def a_pool(most: int) -> SharedPool[Any]:
    return bundle_pool(most, lambda pool: FakeBundle())  # type: ignore[arg-type,return-value]


def test_bundles_are_handed_over_in_order_of_arrival() -> None:
    pool = a_pool(1)
    first = pool.take(clock.now() + 1)
    assert first is not None
    order: list[int] = []

    def wait(number: int) -> None:
        bundle = pool.take(clock.now() + 10)
        assert bundle is not None
        order.append(number)
        pool.give_back(bundle)

    threads = []
    for number in range(20):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        wait_for(partial(lambda want: len(pool.line) == want, number + 1), 5, "its place in the line")
    pool.give_back(first)
    for thread in threads:
        thread.join(10)
    assert order == list(range(20))


def test_a_bundle_that_was_lost_makes_room_for_another() -> None:
    pool = a_pool(2)
    for _ in range(10):
        lost = pool.take(clock.now() + 1)
        assert lost is not None
        del lost
        gc.collect()
    kept = [pool.take(clock.now() + 1) for _ in range(2)]
    assert pool.take(clock.now() + 0.05) is None
    # A traceback may refer to it for ever.
    assert kept[0] is not None
    kept[0].began -= 3600
    assert pool.take(clock.now() + 1) is not None


def test_a_thread_that_was_struck_down_in_the_line_holds_up_nobody() -> None:
    import weakref

    pool = a_pool(1)
    bundle = pool.take(clock.now() + 1)
    assert bundle is not None
    struck = Turn()
    pool.line.append(weakref.ref(struck))
    threading.Timer(0.1, pool.give_back, (bundle,)).start()
    # Its place is kept alive by a traceback, say: it is passed over all the same.
    assert pool.take(clock.now() + 5) is bundle


def test_a_thread_that_comes_back_at_once_does_not_overtake_those_who_wait() -> None:
    pool = a_pool(1)
    bundle = pool.take(clock.now() + 1)
    assert bundle is not None
    order: list[str] = []

    def wait() -> None:
        mine = pool.take(clock.now() + 10)
        assert mine is not None
        order.append("who waited")
        pool.give_back(mine)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(lambda: len(pool.line) == 1, 5, "its place in the line")
    pool.give_back(bundle)
    assert pool.take(clock.now() + 10) is bundle
    order.append("who came back")
    waiting.join(10)
    assert order == ["who waited", "who came back"]
