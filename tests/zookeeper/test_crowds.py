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

from ..servers.process import wait_for
from ..servers.proxy import Proxy
from ..servers.zookeeper import ZooKeeper

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


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
def test_a_burst_of_six_hundred_tasks_is_granted_in_order(url: str) -> None:
    tokens = asyncio.run(asyncio.wait_for(all_in_turn(url, 600), 100))
    assert len(tokens) == 600
    assert tokens == sorted(tokens)


@pytest.mark.slow
def test_four_hundred_tasks_go_on_when_their_connection_breaks(url: str) -> None:
    tokens = asyncio.run(asyncio.wait_for(all_in_turn(url, 400, breaks=True), 100))
    assert len(tokens) == 400
    assert tokens == sorted(tokens)


@pytest.mark.slow
def test_four_hundred_threads_go_on_when_their_connection_breaks(url: str, client_of: Clients) -> None:
    client = client_of(url, session=30)
    first = client.lock("x", ttl=60).acquire()
    tokens: list[int] = []

    def wait() -> None:
        with client.lock("x", ttl=60).acquire() as lease:
            tokens.append(lease.token)

    threads = [threading.Thread(target=wait, daemon=True) for _ in range(400)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(client.inspect("x").waiters) == 400, 60, "four hundred in the line")
    break_connection(client)
    first.release()
    for thread in threads:
        thread.join(100)
    assert len(tokens) == 400
    assert tokens == sorted(tokens)


@pytest.mark.slow
def test_two_thousand_waiters_of_one_client_are_all_granted_over_one_connection(
    url: str, server: ZooKeeper, proxy: Proxy
) -> None:
    began = time.monotonic()
    through = f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}"
    tokens = asyncio.run(all_in_turn(through, 2000))
    print(f"{len(tokens)} granted over {proxy.accepted} connection in {time.monotonic() - began:.1f} s")
    assert len(tokens) == 2000
    assert tokens == sorted(tokens)
    assert proxy.accepted == 1


@pytest.mark.slow
def test_fifty_busy_threads_do_not_cost_a_held_lease(url: str, client_of: Clients) -> None:
    client = client_of(url)
    # Two sessions' worth of work. The session's own arithmetic, which a starved machine eats into, has tests of its own.
    lease = client.lock("held", ttl=3).acquire()
    until, done, slowest = time.monotonic() + 6, [0] * 50, [0.0] * 50

    def work(number: int) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            client.lock(f"free{number}", ttl=5).acquire().release()
            slowest[number] = max(slowest[number], time.monotonic() - began)
            done[number] += 1

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    print(f"{sum(done)} pairs, {min(done)} to {max(done)} per thread, the slowest took {max(slowest):.2f} s")
    assert lease.valid
    assert min(done) > 0
    # Nobody is overtaken again and again.
    assert min(done) * 10 >= max(done)
    lease.release()


@pytest.mark.slow
def test_a_client_that_holds_twelve_hundred_lets_go_of_them_in_a_few_requests(
    url: str, proxy: Proxy, client_of: Clients
) -> None:
    client, other = client_of(f"zk://127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}"), client_of(url)
    backend = client._engine.backend
    leases = [client.lock(f"x{number}", ttl=30).acquire() for number in range(1200)]
    claims = [lease._live.claim for lease in leases]
    # Each holder's watch on its own node is a request too, made a moment after the grant.
    wait_for(lambda: len(backend._subscription._own) == 1200, 60, "the watches")  # type: ignore[attr-defined]
    assert other.evict("x7", token=leases[7].token) == 1
    before = proxy.requests
    there = run(backend.leave_all(claims, now() + 20))
    # A transaction for each two hundred; where one claim has gone already, those of its transaction each for itself.
    assert proxy.requests - before < 300
    assert [at for at, was in enumerate(there) if not was] == [7]
    assert not other.list()
    assert run(backend.leave_all(claims, now() + 20)) == [False] * 1200
    for lease in leases:
        with contextlib.suppress(lockline.LocklineError):
            lease.release()
