"""More threads than bundles, more tasks than a loop can hear in time, and tasks that cancel all others: no lease is late or lost."""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import lockline
from lockline.backends import pool
from lockline.backends.pool import SharedPool, Turn
from lockline.backends.redlock import backend
from lockline.backends.redlock.channel_blocking import bundle_pool
from lockline.runtime import clock
from tests.redis.renewed import TTL, wait_for_renewal
from tests.servers.process import wait_for
from tests.tier import sample

from .servers import Servers, servers

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def five() -> Iterator[Servers]:
    with servers(5) as made:
        yield made


TASKS = sample(100, 600)
WAITERS = sample(60, 1000)


async def all_up(client: Any) -> list[Any]:
    """The connections of this client once each is made: a majority is enough to begin, the last one may come later."""
    made: list[Any] = client._engine.backend.channel.connections
    async with asyncio.timeout(60):
        while not all(one.up for one in made):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return made


def connections(five: Servers) -> list[int]:
    """How many each server has, without the one that asks."""
    return [int(node.command("INFO", "clients")["connected_clients"]) - 1 for node in five.nodes]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("threads", sample([20], [5, 50, 300]))
def test_busy_threads_never_make_a_held_lease_late_and_get_their_turns_in_order(five: Servers, threads: int) -> None:
    pairs: Counter[int] = Counter()
    problems: list[BaseException] = []
    over = threading.Event()
    with lockline.connect(five.url) as client:
        held = client.lock("held", ttl=TTL).acquire()

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
        wait_for_renewal(held)
        # From when all are there, for so many turns, however long that takes: of a few nothing can be said.
        wait_for(lambda: len(pairs) == threads, 60, "everybody's first turn")
        before = [pairs[number] for number in range(threads)]
        wait_for(lambda: sum(pairs[number] for number in range(threads)) > sum(before) + 20 * threads, 120, "the turns")
        turns = [pairs[number] - then for number, then in enumerate(before)]
        over.set()
        for thread in crowd:
            thread.join(60)
        held.release()
    assert problems == []
    assert min(turns) * 3 + 3 >= statistics.median(turns), sorted(turns)


def test_a_burst_of_tasks_is_granted_whole_although_the_loop_hears_the_answers_late(five: Servers) -> None:
    async def story() -> None:
        # A machine that is busy with other tests starves the servers themselves for longer than the default; that is not the story here.
        async with lockline.aio.connect(five.url, node_timeout=3.0) as client:
            await (await client.lock("warm").acquire()).release()
            to_servers = await all_up(client)

            async def one(number: int) -> int:
                # A try asks once: nothing makes up for a server that was given up too early.
                lease = await client.lock(f"n{number}").try_acquire()
                assert lease is not None
                await lease.release()
                return int(lease.token)

            made = [connection.since for connection in to_servers]
            burst = asyncio.gather(*(one(number) for number in range(TASKS)))
            await asyncio.sleep(0)
            # All requests are out, or about to be; now this loop is deaf for longer than a server may take.
            for _ in range(2):
                await asyncio.sleep(0.01)
                time.sleep(3.2)  # noqa: ASYNC251 - this is the point
            assert len(await burst) == TASKS
            assert [connection.since for connection in to_servers] == made, "a server that answers was taken for silent"

    asyncio.run(story())


def test_many_waiters_of_one_client_are_all_granted(five: Servers) -> None:
    async def story() -> None:
        # Those of the clients before are gone.
        await asyncio.to_thread(wait_for, lambda: connections(five) == [0] * 5, 60, "servers without clients")
        # A machine that is busy with other tests starves a server for longer than the default; that is not the story here.
        async with lockline.aio.connect(five.url, node_timeout=5.0) as client:

            async def one() -> int:
                lease = await client.lock("x", ttl=60).acquire(timeout=120)
                await lease.release()
                return int(lease.token)

            held = await client.lock("x", ttl=60).acquire()
            waiting = [asyncio.create_task(one()) for _ in range(WAITERS)]
            queues = client._engine.backend.lines._lines  # type: ignore[attr-defined]
            while len(queues.get("x", ())) < WAITERS:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            await all_up(client)
            made = await asyncio.to_thread(connections, five)
            await held.release()
            tokens = await asyncio.gather(*waiting)
            assert len(set(tokens)) == WAITERS
            assert made == [1] * 5

    asyncio.run(story())


def test_a_program_that_cancels_all_other_tasks_keeps_its_lease(five: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    # Who hears nothing waits for ever, as far as this story goes.
    monkeypatch.setattr(backend, "LOOK_EVERY", 600.0)

    async def story() -> None:
        # A machine that is busy with other tests, or stands still, starves the servers for longer than the default: then neither the
        # lock nor the timeout of the one that waits would be the answer.
        async with (
            lockline.aio.connect(five.url, node_timeout=5.0) as client,
            lockline.aio.connect(five.url, node_timeout=5.0) as operator,
        ):
            await (await operator.lock("warm").acquire(timeout=60)).release()
            async with client.lock("x", ttl=TTL) as lease:
                with pytest.raises(lockline.AcquireTimeout):
                    await operator.lock("x").acquire(timeout=3)
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.to_thread(wait_for_renewal, lease)
            second = await operator.lock("x", ttl=60).acquire(timeout=60)
            # Whoever waits hears of the release, by ears that were begun again.
            third = asyncio.create_task(client.lock("x", ttl=60).acquire(timeout=60))
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


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that a busy machine keeps from its turn is not passed over by those behind it."""
    monkeypatch.setattr(pool, "LOOK_AGAIN", 60.0)


def a_pool(most: int) -> SharedPool[Any]:
    return bundle_pool(most, lambda pool: FakeBundle())  # type: ignore[arg-type,return-value]


@pytest.mark.usefixtures("patient")
def test_bundles_are_handed_over_in_order_of_arrival() -> None:
    pool = a_pool(1)
    first = pool.take(clock.now() + 60)
    assert first is not None
    order: list[int] = []

    def wait(number: int) -> None:
        bundle = pool.take(clock.now() + 60)
        assert bundle is not None
        order.append(number)
        pool.give_back(bundle)

    threads = []
    for number in range(20):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        wait_for(partial(lambda want: len(pool.line) == want, number + 1), 60, "its place in the line")
    pool.give_back(first)
    for thread in threads:
        thread.join(60)
    assert order == list(range(20))


def test_a_bundle_that_was_lost_makes_room_for_another() -> None:
    pool = a_pool(2)
    for _ in range(10):
        lost = pool.take(clock.now() + 60)
        assert lost is not None
        del lost
        gc.collect()
    kept = [pool.take(clock.now() + 60) for _ in range(2)]
    assert pool.take(clock.now() + 0.05) is None
    # A traceback may refer to it for ever.
    assert kept[0] is not None
    kept[0].began -= 3600
    assert pool.take(clock.now() + 60) is not None


def test_a_thread_that_was_struck_down_in_the_line_holds_up_nobody() -> None:
    import weakref

    pool = a_pool(1)
    bundle = pool.take(clock.now() + 60)
    assert bundle is not None
    struck = Turn()
    pool.line.append(weakref.ref(struck))
    threading.Timer(0.1, pool.give_back, (bundle,)).start()
    # Its place is kept alive by a traceback, say: it is passed over all the same.
    assert pool.take(clock.now() + 60) is bundle


@pytest.mark.usefixtures("patient")
def test_a_thread_that_comes_back_at_once_does_not_overtake_those_who_wait() -> None:
    pool = a_pool(1)
    bundle = pool.take(clock.now() + 60)
    assert bundle is not None
    order: list[str] = []

    def wait() -> None:
        mine = pool.take(clock.now() + 60)
        assert mine is not None
        order.append("who waited")
        pool.give_back(mine)

    waiting = threading.Thread(target=wait)
    waiting.start()
    wait_for(lambda: len(pool.line) == 1, 60, "its place in the line")
    pool.give_back(bundle)
    assert pool.take(clock.now() + 60) is bundle
    order.append("who came back")
    waiting.join(60)
    assert order == ["who waited", "who came back"]
