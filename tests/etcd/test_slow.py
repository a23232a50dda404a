"""Servers that are slow, full or frozen, but not dead: they are neither left nor flooded, and nobody loses a lease by it."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lockline
from lockline import aio
from lockline.backends.etcd.channel import PING_EVERY, Patience
from lockline.errors import BackendUnavailable, LocklineError
from lockline.runtime.blocking import run

from ..servers.etcd import EtcdCluster
from ..servers.process import wait_for
from ..servers.proxy import Proxy
from .conftest import backend_of, post, text

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


@pytest.fixture
def proxy(single: EtcdCluster) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", single.members[0].port)) as proxy:
        yield proxy


@pytest.mark.slow
def test_a_slow_server_serves_all_threads_on_one_connection(proxy: Proxy, client_of: Clients) -> None:
    """Each answer takes 0.7 s: more than a call with a short deadline used to wait before it gave up everybody's connection."""
    client = client_of(f"etcd://127.0.0.1:{proxy.port}/slow")
    held = client.lock("held", ttl=6).acquire()
    granted = [0] * 4
    problems: list[LocklineError] = []
    proxy.delay(0.35)
    until = time.monotonic() + 8

    def work(number: int) -> None:
        while time.monotonic() < until:
            try:
                with client.lock(f"n{number}", ttl=6).acquire(timeout=2):
                    granted[number] += 1
            except LocklineError as problem:
                problems.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    proxy.heal()
    print(f"granted {granted}, {len(problems)} problems, {proxy.accepted} connections, held: {held.valid}")
    assert proxy.accepted == 1
    assert held.valid
    assert all(granted), problems[-1]
    held.release()


@pytest.mark.slow
def test_a_slow_server_serves_all_tasks_on_one_connection(proxy: Proxy) -> None:
    granted = [0] * 4

    async def scene() -> None:
        async with aio.connect(f"etcd://127.0.0.1:{proxy.port}/slow-tasks") as client:
            held = await client.lock("held", ttl=6).acquire()
            proxy.delay(0.35)
            until = time.monotonic() + 6

            async def work(number: int) -> None:
                while time.monotonic() < until:
                    try:
                        lease = await client.lock(f"n{number}", ttl=6).acquire(timeout=2)
                    except LocklineError:
                        continue
                    granted[number] += 1
                    await lease.release()

            await asyncio.gather(*(work(number) for number in range(4)))
            proxy.heal()
            print(f"granted {granted}, {proxy.accepted} connections, held: {held.valid}")
            assert held.valid
            await held.release()

    asyncio.run(scene())
    assert proxy.accepted == 1
    assert all(granted)


@pytest.mark.slow
def test_a_frozen_server_that_goes_on_finds_the_client_where_it_was(tmp_path: Path, client_of: Clients) -> None:
    cluster = EtcdCluster(tmp_path / "frozen").start()
    server = cluster.members[0].server
    assert server is not None
    try:
        with Proxy(("127.0.0.1", cluster.members[0].port)) as proxy:
            client = client_of(f"etcd://127.0.0.1:{proxy.port}")
            held = client.lock("held", ttl=12).acquire()
            server.freeze()
            outcome: list[object] = []
            thread = threading.Thread(target=lambda: outcome.append(client.lock("x", ttl=12).acquire(timeout=20)))
            thread.start()
            most, began = 0, time.monotonic()
            while (frozen := time.monotonic() - began) < 4:
                most = max(most, len(set(proxy._links.values())))
                time.sleep(0.1)
            made = proxy.accepted
            server.thaw()
            thread.join(60)
            print(
                f"{made} connections in {frozen:.1f} s, at most {most} at once, held: {held.valid}, outcome: {outcome}"
            )
            assert isinstance(outcome[0], lockline.Lease)
            assert held.valid
            assert most <= 2
            assert made <= 1 + frozen // 2.1  # a second of silence, and one for the answer to a ping
            outcome[0].release()
            held.release()
            wait_for(lambda: len(set(proxy._links.values())) == 1, 5, "the end of the second connection")
            client.close()
    finally:
        cluster.stop()


def test_no_sign_of_life_is_asked_for_within_five_seconds_of_the_last() -> None:
    """A member that answers pings after 0.3 s and calls never: on a virtual clock, with calls of every deadline."""
    pings: list[float] = []
    now, heard, pinged, pong = 100.0, 100.0, 0.0, float("inf")
    calls = [Patience.until(now, now + left) for left in (0.5, 1.0, 3.3, 10.0, 60.0)]
    while now < 160.0:
        now += 0.01
        if now >= pong:
            heard, pong = pong, float("inf")
        for call in calls:
            step, _ = call.step(now, heard, pinged, answered=now)
            assert step in ("wait", "ping"), (step, now)
            if step == "ping":
                pings.append(now)
                pinged, pong = now, now + 0.3
    gaps = [later - earlier for earlier, later in itertools.pairwise(pings)]
    assert len(pings) > 8
    assert min(gaps) >= PING_EVERY


def test_a_member_that_answers_others_is_not_left_by_the_one_that_waits_longest() -> None:
    call = Patience.until(100.0, 160.0)
    assert call.step(130.0, heard=130.0, pinged=0.0, answered=129.0)[0] == "wait"
    assert call.step(130.0, heard=130.0, pinged=0.0, answered=101.0)[0] == "slow"
    assert call.step(130.0, heard=127.0, pinged=128.0, answered=129.0)[0] == "dead"


def test_calls_under_way_end_on_the_connection_that_they_began_on(single: EtcdCluster, client_of: Clients) -> None:
    """Another member is asked from now on; what the first one owes is still taken from it, and then it is let go."""
    port = single.members[0].port
    with Proxy(("127.0.0.1", port)) as one, Proxy(("127.0.0.1", port)) as two:
        client = client_of(f"etcd://127.0.0.1:{one.port},127.0.0.1:{two.port}/moved")
        channel = backend_of(client)._channel
        channel._at = 0
        client.lock("warm", ttl=30).acquire().release()
        first = channel.link
        assert first is not None
        one.delay(0.2)
        before = one.requests
        outcome: list[lockline.Lease] = []
        thread = threading.Thread(target=lambda: outcome.append(client.lock("x", ttl=30).acquire(timeout=10)))
        thread.start()
        wait_for(lambda: one.requests > before, 5, "the request")
        assert run(channel._move(first, False, channel.now() + 5))
        assert channel.link is not first
        assert first.grpc.broken is None
        thread.join(60)
        assert (one.accepted, two.accepted) == (1, 1)
        assert first.grpc.broken is not None
        # Nothing was asked twice: the answer came from where the question went.
        assert not backend_of(client)._claims.standing()[0].late
        outcome[0].release()


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_more_callers_than_streams_wait_their_turn_on_one_connection(
    tmp_path: Path, client_of: Clients, flavour: str
) -> None:
    cluster = EtcdCluster(tmp_path / "few", options=("--max-concurrent-streams=10",)).start()
    try:
        with Proxy(("127.0.0.1", cluster.members[0].port)) as proxy:
            url = f"etcd://127.0.0.1:{proxy.port}"
            granted: list[int] = []
            problems: list[LocklineError] = []
            if flavour == "sync":
                client = client_of(url)

                def work(number: int) -> None:
                    for _ in range(10):
                        try:
                            with client.lock(f"n{number}", ttl=20).acquire(timeout=20) as lease:
                                granted.append(lease.token)
                        except LocklineError as problem:
                            problems.append(problem)

                threads = [threading.Thread(target=work, args=(number,)) for number in range(30)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                client.close()
            else:

                async def scene() -> None:
                    async with aio.connect(url) as client:

                        async def work(number: int) -> None:
                            async with client.lock(
                                f"n{number}",
                                ttl=20,
                            ) as lease:
                                granted.append(lease.token)

                        await asyncio.gather(*(work(number) for number in range(300)))

                asyncio.run(scene())
            print(f"{len(granted)} granted, {proxy.accepted} connections, {len(problems)} problems")
            assert len(granted) == 300, problems[-1:]
            assert proxy.accepted == 1
    finally:
        cluster.stop()


def test_one_login_serves_every_connection(tmp_path: Path, client_of: Clients) -> None:
    cluster = EtcdCluster(tmp_path / "auth").start()
    try:
        post(cluster, "auth/user/add", name="root", password="secret")
        post(cluster, "auth/role/add", name="root")
        post(cluster, "auth/user/grant", user="root", role="root")
        post(cluster, "auth/enable")

        def logins() -> float:
            metrics = cluster.members[0].metrics()
            return sum(value for key, value in metrics.items() if "handled_total" in key and '"Authenticate"' in key)

        with Proxy(("127.0.0.1", cluster.members[0].port)) as proxy:
            client = client_of(f"etcd://root:secret@127.0.0.1:{proxy.port}")
            for _ in range(6):
                client.lock("x", ttl=30).acquire(timeout=10).release()
                proxy.cut()
            print(f"{logins()} logins on {proxy.accepted} connections")
            assert proxy.accepted > 3
            assert logins() == 1
            client.close()
    finally:
        cluster.stop()


@pytest.mark.slow
def test_a_full_database_is_told_and_asked_on_one_connection(tmp_path: Path, client_of: Clients) -> None:
    cluster = EtcdCluster(tmp_path / "full", options=("--quota-backend-bytes=2000000",)).start()
    try:
        with Proxy(("127.0.0.1", cluster.members[0].port)) as proxy:
            client = client_of(f"etcd://127.0.0.1:{proxy.port}")
            held = client.lock("held", ttl=3).acquire()
            try:
                for number in range(100):
                    post(cluster, "kv/put", key=text(f"big{number}"), value=text("x" * 100_000))
            except OSError:
                pass  # full
            with pytest.raises(BackendUnavailable, match="space"):
                client.lock("x", ttl=3).acquire(timeout=4)
            print(f"{proxy.accepted} connections, {proxy.requests} packets, held: {held.valid}")
            assert proxy.accepted == 1
            assert proxy.requests < 120
            client.close()
    finally:
        cluster.stop()
