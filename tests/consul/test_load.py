"""Many of one client at once, and agents that are slow, short of connections or have forgotten: all are served, no lease is lost by it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lockline import aio
from lockline.backends.consul import channel, claims
from lockline.errors import LocklineError

from ..bursts import is_served_whole
from ..renewed import renewal_of
from ..servers.consul import ConsulCluster
from ..servers.process import wait_for
from ..servers.proxy import Proxy
from ..tier import sample
from .conftest import Clients, backend_of

pytestmark = pytest.mark.server


def at_once(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_many_threads_on_one_name_are_granted_in_order(url: str, client_of: Clients) -> None:
    client, count = client_of(url), sample(50, 300)
    granted: list[int] = []

    def wait() -> None:
        with client.lock("x", ttl=60).acquire(timeout=120) as lease:
            granted.append(lease.token)

    at_once([threading.Thread(target=wait) for _ in range(count)])
    assert len(granted) == count
    assert granted == sorted(granted)


def test_those_who_wait_behind_their_own_client_do_not_read_the_line_again_and_again(
    url: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look reads the whole of it: a thousand of them would keep a release from its connection."""
    monkeypatch.setattr(claims, "NET", 0.1)
    client = client_of(url)
    lease = client.lock("x", ttl=60).acquire()
    threads = [
        threading.Thread(target=lambda: client.lock("x", ttl=60).acquire(timeout=60).release()) for _ in range(30)
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(client.inspect("x").waiters) == 30, 60, "thirty waiters")
    sightings = backend_of(client)._claims.sightings
    looks: list[str] = []
    line = sightings.line

    async def counted(name: str, *args: Any, **more: Any) -> Any:
        looks.append(name)
        return await line(name, *args, **more)

    monkeypatch.setattr(sightings, "line", counted)
    began = time.monotonic()
    wait_for(lambda: time.monotonic() > began + 1, 60, "ten times as long as they would trust others")
    assert not looks
    lease.release()
    for thread in threads:
        thread.join(60)


def test_many_tasks_on_as_many_names_are_granted(url: str) -> None:
    async def scene(count: int) -> None:
        async with aio.connect(url) as client:

            async def work(number: int) -> int:
                async with await client.lock(f"n{number}", ttl=60).acquire(timeout=120):
                    return 1

            assert sum(await asyncio.gather(*(work(number) for number in range(count)))) == count

    asyncio.run(scene(sample(80, 600)))


def test_a_burst_that_takes_longer_than_a_ttl_is_served_whole(through: str, proxy: Proxy) -> None:
    """Ninety stand in line for four connections: the last of them asks after more than a ttl, and nobody was silent.

    Longer than 5 s: so is the ttl.
    """
    is_served_whole(through, proxy, delay=0.13, tasks=90, names=90, ttl=5)


SLOW = 0.35
"""Each way: an answer takes twice that."""


def test_leases_are_kept_through_a_slow_agent_whatever_the_number_of_threads_that_ask_it(
    through: str, proxy: Proxy, client_of: Clients
) -> None:
    """Forty threads wait for four connections: a renewal that stood behind them all would come after seven seconds."""
    client = client_of(through)
    held = client.lock("held", ttl=6).acquire()
    kept, until = renewal_of(held), time.monotonic() + 60
    proxy.delay(SLOW)

    def work(number: int) -> None:
        while held.valid and not kept() and time.monotonic() < until:
            try:
                with client.lock(f"n{number}", ttl=60).acquire(timeout=1):
                    pass
            except LocklineError:
                pass  # not in time: that is the point

    at_once([threading.Thread(target=work, args=(number,)) for number in range(40)])
    assert kept()
    proxy.heal()
    held.release()


def test_leases_are_kept_through_a_slow_agent_whatever_the_number_of_tasks_that_ask_it(
    through: str, proxy: Proxy
) -> None:
    async def scene() -> None:
        async with aio.connect(through) as client:
            held = await client.lock("held", ttl=6).acquire()
            kept, until = renewal_of(held), time.monotonic() + 60
            proxy.delay(SLOW)

            async def work(number: int) -> None:
                while held.valid and not kept() and time.monotonic() < until:
                    try:
                        await (await client.lock(f"n{number}", ttl=60).acquire(timeout=1)).release()
                    except LocklineError:
                        pass  # not in time: that is the point

            await asyncio.gather(*(work(number) for number in range(40)))
            assert kept()
            proxy.heal()
            await held.release()

    asyncio.run(scene())


IMPATIENT = 100
GRANTED = 24
"""So many grants: six times as many as are asked for at once."""
MADE = 200
"""So many connections at the most, also where a busy machine is late with answers; with one for each request that was given up it was 300."""


def test_impatient_threads_at_a_slow_agent_are_granted_and_wear_out_no_connections(
    through: str, proxy: Proxy, client_of: Clients
) -> None:
    """Longer than 5 s: an answer takes seven tenths of a second, and four are asked for at a time."""
    client = client_of(through)
    client.lock("warm").acquire().release()
    granted: list[float] = []
    before, until = proxy.accepted, time.monotonic() + 60
    proxy.delay(SLOW)

    def work(number: int) -> None:
        while len(granted) < GRANTED and time.monotonic() < until:
            try:
                with client.lock(f"n{number}", ttl=60).acquire(timeout=1) as lease:
                    granted.append(lease.token)
            except LocklineError:
                pass  # not in time: that is the point

    at_once([threading.Thread(target=work, args=(number,)) for number in range(IMPATIENT)])
    proxy.heal()
    assert len(granted) >= GRANTED
    assert proxy.accepted - before <= MADE


def test_impatient_tasks_at_a_slow_agent_are_granted_and_wear_out_no_connections(through: str, proxy: Proxy) -> None:
    """Longer than 5 s, as with threads."""

    async def scene() -> None:
        async with aio.connect(through) as client:
            await (await client.lock("warm").acquire()).release()
            granted: list[float] = []
            before, until = proxy.accepted, time.monotonic() + 60
            proxy.delay(SLOW)

            async def work(number: int) -> None:
                while len(granted) < GRANTED and time.monotonic() < until:
                    try:
                        async with await client.lock(f"n{number}", ttl=60).acquire(timeout=1) as lease:
                            granted.append(lease.token)
                    except LocklineError:
                        pass  # not in time: that is the point

            await asyncio.gather(*(work(number) for number in range(IMPATIENT)))
            proxy.heal()
            assert len(granted) >= GRANTED
            assert proxy.accepted - before <= MADE

    asyncio.run(scene())


def test_agents_that_are_all_slow_are_given_the_time_that_they_need(
    consul: ConsulCluster, prefix: str, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Going from one to the next with each silence, nobody would ever hear an answer."""
    monkeypatch.setattr(channel, "A_CONNECTION", 0.2)
    place = ("127.0.0.1", consul.servers[0].port)
    with Proxy(place) as one, Proxy(place) as two:
        client = client_of(f"consul://127.0.0.1:{one.port},127.0.0.1:{two.port}/{prefix}?session_ttl=1")
        held = client.lock("held", ttl=6).acquire(timeout=60)
        for proxy in (one, two):
            proxy.delay(0.15)
        kept = renewal_of(held)
        with client.lock("x", ttl=60).acquire(timeout=60):
            pass
        wait_for(kept, 60, "a renewal")
        for proxy in (one, two):
            proxy.heal()
        held.release()
        client.close()


def test_an_agent_that_allows_few_connections_serves_all_threads_one_after_the_other(
    tmp_path: Path, client_of: Clients
) -> None:
    cluster = ConsulCluster(tmp_path / "few", config={"limits": {"http_max_conns_per_client": 3}}).start()
    try:
        client = client_of(f"{cluster.url}/p?session_ttl=1")
        granted: list[int] = []

        def work(number: int) -> None:
            for _ in range(3):
                with client.lock(f"n{number % 4}", ttl=60).acquire(timeout=120) as lease:
                    granted.append(lease.token)

        at_once([threading.Thread(target=work, args=(number,)) for number in range(12)])
        assert len(granted) == 36
        client.close()
    finally:
        cluster.stop()


def test_a_server_that_comes_back_with_nothing_ends_the_leases_and_is_heard_at_once(
    tmp_path: Path, client_of: Clients
) -> None:
    """Its index begins anew: whoever went on asking for what comes after the old one would hear nothing for a long time.

    Longer than 5 s: two servers start.
    """
    old = ConsulCluster(tmp_path / "old").start()
    new: ConsulCluster | None = None
    try:
        url = f"{old.url}/p?session_ttl=1"
        first, second = client_of(url), client_of(url)
        for _ in range(40):
            first.lock("warm").acquire().release()
        lease = first.lock("x", ttl=30).acquire()
        pushes = backend_of(second)._claims.pushes
        thread = threading.Thread(target=lambda: second.lock("x", ttl=30).acquire(timeout=60).release())
        thread.start()
        wait_for(lambda: pushes._query._index > 0, 60, "the listener")
        before = pushes._query._index
        old.stop()
        new = ConsulCluster(tmp_path / "new")
        new.servers[0].port = old.servers[0].port
        new.start()
        wait_for(lambda: 0 < pushes._query._index < before, 60, "a listener that begins anew")
        thread.join(60)
        assert not thread.is_alive()
        assert lease.lost.wait(60)
    finally:
        old.stop()
        if new is not None:
            new.stop()
