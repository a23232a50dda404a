"""What a lock costs, counted at the server."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient

import lockline
from lockline import aio

from ..servers.process import wait_for
from ..servers.proxy import Proxy
from ..servers.zookeeper import ZooKeeper, facts
from ..tier import sample
from .conftest import chroot

pytestmark = pytest.mark.server


class Counted:
    """What the server did in the block."""

    def __init__(self, server: ZooKeeper) -> None:
        self._server = server

    def _now(self) -> tuple[int, int, int, int]:
        told = facts(self._server.port)
        return tuple(  # type: ignore[return-value]
            int(float(told.get(key, 0)))
            for key in (
                "zk_cnt_readlatency", "zk_cnt_updatelatency", "zk_sum_node_deleted_watch_count",
                "zk_sum_node_children_watch_count",
            )
        )  # fmt: skip

    def __enter__(self) -> Counted:
        self._before, self._began = self._now(), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        after, self.seconds = self._now(), time.monotonic() - self._began
        self.reads, self.writes, self.events, self.child_events = (
            now - then for then, now in zip(self._before, after, strict=True)
        )


async def until_they_wait(client: aio.Client, count: int) -> None:
    """Wait until so many stand in the line of x."""
    while len((await client.inspect("x")).waiters) < count:  # noqa: ASYNC110 - the server has the only event
        await asyncio.sleep(0.02)


@pytest.fixture
def lasting(url: str, kazoo: KazooClient) -> None:
    """The parent of x stays, as it does where a lock is in use; on these servers an empty one is gone within a second."""
    kazoo.ensure_path(f"{chroot(url)}/x/keep")


@pytest.mark.usefixtures("lasting")
def test_an_uncontended_acquire_is_a_create_and_a_look_and_a_release_is_a_delete(
    server: ZooKeeper, url: str, client_of: Callable[..., lockline.Client]
) -> None:
    client = client_of(url, session=30)
    client.lock("x", ttl=60).acquire().release()
    with Counted(server) as cost:
        for _ in range(50):
            client.lock("x", ttl=60).acquire().release()
    # A session that carries claims is confirmed by a write every few seconds.
    assert 97 <= cost.writes <= 103 + cost.seconds
    # One look each; the four-letter words of this test are requests too, and the keeper looks round twice a second.
    assert cost.reads <= 58 + 2 * cost.seconds
    assert cost.events == cost.child_events == 0


@pytest.mark.usefixtures("lasting")
def test_handing_on_among_the_threads_of_a_client_costs_a_create_a_look_a_watch_and_a_delete_each(
    server: ZooKeeper, url: str, client_of: Callable[..., lockline.Client]
) -> None:
    client = client_of(url, session=30)
    client.lock("x", ttl=60).acquire().release()

    def work() -> None:
        for _ in range(25):
            with client.lock("x", ttl=60):
                pass

    threads = [threading.Thread(target=work) for _ in range(6)]
    with Counted(server) as cost:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert 290 <= cost.writes <= 310 + cost.seconds
    # A release of one's own is no news to the keeper: it looks round, and has holders watch their nodes, twice a second only.
    assert cost.reads <= 355 + 2 * cost.seconds


EXISTS = 3
"""The type of the request by which a holder watches its own node: sent after the grant, and not waited for."""


@contextlib.contextmanager
def one_round_trip(proxy: Proxy) -> Iterator[None]:
    """All that is asked of the server here about x leaves in one packet, and so before any answer."""
    asked: list[int] = []

    def note(to_server: bool, data: bytes, fate: str) -> None:
        if to_server and b"/lockline/x" in data:
            asked.append(int.from_bytes(data[8:12], "big"))

    proxy.on_packet = note
    yield
    proxy.on_packet = lambda to_server, data, fate: None
    assert len([kind for kind in asked if kind != EXISTS]) == 1


@pytest.mark.usefixtures("lasting")
def test_an_uncontended_acquire_is_one_round_trip_of_latency(
    proxy: Proxy, url: str, client_of: Callable[..., lockline.Client]
) -> None:
    client = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}", session=30)
    client.lock("x", ttl=60).acquire().release()
    for _ in range(5):
        with one_round_trip(proxy):
            lease = client.lock("x", ttl=60).acquire()
        with one_round_trip(proxy):
            lease.release()


def test_a_try_that_fails_writes_nothing(
    server: ZooKeeper, url: str, client_of: Callable[..., lockline.Client]
) -> None:
    client, other = client_of(url, session=30), client_of(url, session=30)
    lease = client.lock("x", ttl=60).acquire()
    assert other.lock("x", ttl=60).try_acquire() is None
    with Counted(server) as cost:
        for _ in range(30):
            assert other.lock("x", ttl=60).try_acquire() is None
    assert cost.writes <= 2 + cost.seconds / 3  # and what confirms the holder's session
    lease.release()


@pytest.mark.slow
@pytest.mark.parametrize("waiters", sample([15, 60], [20, 200]))
def test_a_release_costs_the_same_however_many_wait(server: ZooKeeper, url: str, waiters: int) -> None:
    """No herd: of all who wait, the release wakes one."""

    async def story() -> tuple[Counted, list[int]]:
        order: list[int] = []
        clients = [aio.connect(url, session=30) for _ in range(5)]
        holder = aio.connect(url, session=30)

        async def wait(number: int) -> None:
            lease = await clients[number % 5].lock("x", ttl=60).acquire()
            order.append(lease.token)
            if len(order) == 11:
                reached.set()
                await go_on.wait()
            await lease.release()

        reached, go_on = asyncio.Event(), asyncio.Event()
        lease = await holder.lock("x", ttl=60).acquire()
        tasks = []
        for number in range(waiters):
            tasks.append(asyncio.create_task(wait(number)))
        await until_they_wait(holder, waiters)
        # Who stands in the line has its watch a moment later.
        while int(facts(server.port)["zk_watch_count"]) < waiters:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
        # Eleven hand-overs, with nothing else going on.
        with Counted(server) as cost:
            await lease.release()
            await asyncio.wait_for(reached.wait(), 120)
        go_on.set()
        await asyncio.gather(*tasks)
        for client in (*clients, holder):
            await client.close()
        return cost, order

    cost, order = asyncio.run(story())
    assert len(order) == waiters
    assert order == sorted(order)
    # One for each hand-over, and one to a holder of more than a moment: six clients look twice a second which of their nodes to watch.
    assert cost.events <= 11 + 2 + 12 * cost.seconds
    assert cost.child_events == 0
    # Six clients confirm their sessions every few seconds, and look round twice a second.
    assert cost.writes <= 11 + 12 + 2 * cost.seconds
    assert cost.reads <= 11 * 2 + 10 + 12 + 12 * cost.seconds


@pytest.mark.parametrize("waiters", [10])
def test_a_permit_that_is_given_back_wakes_no_more_than_the_semaphore_has_permits(
    server: ZooKeeper, url: str, waiters: int
) -> None:
    async def story() -> Counted:
        async with aio.connect(url, session=30) as client, aio.connect(url, session=30) as other:
            held = [await client.semaphore("x", 3, ttl=60).acquire() for _ in range(3)]
            tasks = [asyncio.create_task(other.semaphore("x", 3, ttl=60).acquire()) for _ in range(waiters)]
            await until_they_wait(client, waiters)
            with Counted(server) as cost:
                await held[2].release()
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED, timeout=60)
            for lease in held[:2]:
                await lease.release()
            left = set(tasks)
            while left:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED, timeout=60)
                for task in done:
                    await task.result().release()
        return cost

    cost = asyncio.run(story())
    assert cost.events <= 3


def test_readers_behind_a_writer_come_in_together(url: str, client_of: Callable[..., lockline.Client]) -> None:
    writer = client_of(url).rwlock("x").write().acquire()

    async def story() -> None:
        async with aio.connect(url) as client:
            tasks = [asyncio.create_task(client.rwlock("x").read().acquire()) for _ in range(20)]
            await until_they_wait(client, 20)
            await asyncio.to_thread(writer.release)
            leases = await asyncio.wait_for(asyncio.gather(*tasks), 60)
            assert len((await client.inspect("x")).holders) == 20
            for lease in leases:
                await lease.release()

    asyncio.run(story())


def test_nothing_is_watched_by_a_client_that_only_holds_for_a_moment(
    server: ZooKeeper, url: str, client_of: Callable[..., lockline.Client]
) -> None:
    client = client_of(url, session=30)
    for _ in range(20):
        client.lock("x", ttl=60).acquire().release()
    wait_for(lambda: int(facts(server.port)["zk_watch_count"]) == 0, 60, "no watch left")
