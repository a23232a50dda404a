"""Many through one client: no burst blocks the way to the server, no break of the connection, and nobody is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

import pytest

import lockline
from lockline import aio
from lockline.runtime.blocking import run
from lockline.runtime.clock import now

from ..renewed import renewal_of
from ..servers.process import wait_for
from ..servers.proxy import Proxy
from ..servers.zookeeper import ZooKeeper
from ..tier import sample

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


REST = sample(0.2, 0.0)
"""Seconds between two locks of one that is busy: fifty of them still come in bursts, and the machine has time for other tests."""


def break_connection(client: lockline.Client | aio.Client) -> None:
    client._engine.backend._channel.client._connection._socket.shutdown(2)  # type: ignore[attr-defined]


async def all_in_turn(url: str, count: int, *, breaks: bool = False) -> list[int]:
    """The tokens in order of grant, of so many tasks of one client on one name."""
    tokens: list[int] = []
    async with aio.connect(url, session=30) as client:
        first = await client.lock("x", ttl=60).acquire()

        async def wait() -> None:
            async with client.lock("x", ttl=60) as lease:
                tokens.append(lease.token)

        tasks = [asyncio.create_task(wait()) for _ in range(count)]
        while len((await client.inspect("x")).waiters) < count:  # noqa: ASYNC110 - the server has the only event
            await asyncio.sleep(0.1)
        if breaks:
            break_connection(client)
        await first.release()
        await asyncio.gather(*tasks)
    return tokens


@pytest.mark.slow
def test_a_burst_of_tasks_is_granted_in_order(url: str) -> None:
    count = sample(50, 600)
    tokens = asyncio.run(all_in_turn(url, count))
    assert len(tokens) == count
    assert tokens == sorted(tokens)


@pytest.mark.slow
def test_many_tasks_go_on_when_their_connection_breaks(url: str) -> None:
    count = sample(50, 400)
    tokens = asyncio.run(all_in_turn(url, count, breaks=True))
    assert len(tokens) == count
    assert tokens == sorted(tokens)


@pytest.mark.slow
def test_many_threads_go_on_when_their_connection_breaks(url: str, client_of: Clients) -> None:
    count = sample(30, 400)
    client = client_of(url, session=30)
    first = client.lock("x", ttl=60).acquire()
    tokens: list[int] = []

    def wait() -> None:
        with client.lock("x", ttl=60).acquire() as lease:
            tokens.append(lease.token)

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(client.inspect("x").waiters) == count, 120, "all in the queue")
    break_connection(client)
    first.release()
    for thread in threads:
        thread.join(120)
    assert len(tokens) == count
    assert tokens == sorted(tokens)


@pytest.mark.slow
def test_very_many_waiters_of_one_client_are_all_granted_over_one_connection(
    url: str, server: ZooKeeper, proxy: Proxy
) -> None:
    count = sample(150, 2000)
    began = time.monotonic()
    through = f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}"
    tokens = asyncio.run(all_in_turn(through, count))
    print(f"{len(tokens)} granted over {proxy.accepted} connection in {time.monotonic() - began:.1f} s")
    assert len(tokens) == count
    assert tokens == sorted(tokens)
    assert proxy.accepted == 1


@pytest.mark.slow
def test_fifty_busy_threads_do_not_cost_a_held_lease(url: str, client_of: Clients) -> None:
    # The session's own arithmetic has tests of its own; a session of 30 s is no part of this one.
    client = client_of(url, session=30)
    lease = client.lock("held", ttl=6).acquire()
    done, over, kept = [0] * 50, threading.Event(), renewal_of(lease)

    def work(number: int) -> None:
        while not over.is_set():
            client.lock(f"free{number}", ttl=60).acquire().release()
            done[number] += 1
            over.wait(REST)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(50)]
    for thread in threads:
        thread.start()
    # A thread that the others overtake again and again would not come this far.
    wait_for(lambda: min(done) >= 5, 120, "five grants of each thread")
    wait_for(kept, 60, "a renewal of the lease that is held")
    over.set()
    for thread in threads:
        thread.join(60)
    print(f"{sum(done)} pairs, {min(done)} to {max(done)} per thread")
    assert lease.valid
    # The threads are served in turn.
    assert min(done) * 10 >= max(done)
    lease.release()


@pytest.mark.slow
def test_a_client_that_holds_very_many_releases_them_in_a_few_requests(
    url: str, proxy: Proxy, client_of: Clients
) -> None:
    """Longer than 5 s on a busy machine: each of them is acquired for itself."""
    count = sample(250, 1200)
    client, other = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}"), client_of(url)
    backend = client._engine.backend
    leases = [client.lock(f"x{number}", ttl=60).acquire() for number in range(count)]
    claims = [lease._live.claim for lease in leases]
    # Each holder's watch on its own node is a request too, made a moment after the grant.
    wait_for(lambda: len(backend._subscription._own) == count, 120, "the watches")  # type: ignore[attr-defined]
    gone = count - 7
    assert other.evict(f"x{gone}", token=leases[gone].token) == 1
    before = proxy.requests
    there = run(backend.leave_all(claims, now() + 60))
    # A transaction for each two hundred; where one claim has gone already, those of its transaction each for itself.
    assert proxy.requests - before < sample(100, 300)
    assert [at for at, was in enumerate(there) if not was] == [gone]
    assert not other.list()
    assert run(backend.leave_all(claims, now() + 60)) == [False] * count
    for lease in leases:
        with contextlib.suppress(lockline.LocklineError):
            lease.release()
