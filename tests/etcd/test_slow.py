"""Servers that are slow, full or frozen, but not dead: they are neither left nor flooded, and nobody loses a lease by it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lockline
from lockline import aio
from lockline.backends.etcd import channel
from lockline.backends.etcd.channel import PING_EVERY, Patience
from lockline.errors import BackendUnavailable, LocklineError
from lockline.runtime.blocking import run

from ..bursts import is_served_whole
from ..servers.etcd import EtcdCluster
from ..servers.process import wait_for
from ..servers.proxy import Proxy
from ..tier import sample
from .conftest import backend_of, post, text

pytestmark = pytest.mark.server
Clients = Callable[..., lockline.Client]


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """A server that takes ten calls at a time."""
    cluster = EtcdCluster(tmp_path_factory.mktemp("few"), options=("--max-concurrent-streams=10",)).start()
    yield cluster
    cluster.stop()


def test_a_burst_that_takes_longer_than_a_ttl_is_served_whole(few: EtcdCluster) -> None:
    """Many come, and ten are asked for at once: the last of them after more than a ttl, and nobody was silent.

    Longer than 5 s: so is the ttl.
    """
    with Proxy(("127.0.0.1", few.members[0].port)) as proxy:
        many = sample(120, 500)
        is_served_whole(f"etcd://127.0.0.1:{proxy.port}/burst", proxy, delay=0.15, tasks=many, names=many, ttl=5)


@pytest.fixture
def ten_times_as_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the client counts with lasts longer, and so do the answers: what the machine takes does not matter then."""
    monkeypatch.setattr(channel, "QUIET", 10.0)
    monkeypatch.setattr(channel, "SLOW", 30.0)


SLOW = 3.0
"""Each way: an answer takes twice that."""
SHORT = 20.0
"""A deadline of a call: after a quarter of it a sign of life is asked for, and after a third another member would be."""


@pytest.mark.slow
@pytest.mark.usefixtures("ten_times_as_slow")
def test_a_slow_server_serves_all_threads_and_all_tasks_on_one_connection(
    single: EtcdCluster, client_of: Clients
) -> None:
    """Each answer takes more than a call with a short deadline used to wait before it gave up everybody's connection.

    Longer than 5 s: each thread and each task gets two such answers. They run side by side, on a connection of their client's own.
    """
    port = single.members[0].port
    granted = [0] * 8
    with Proxy(("127.0.0.1", port)) as proxy, Proxy(("127.0.0.1", port)) as other_proxy:
        client = client_of(f"etcd://127.0.0.1:{proxy.port}/slow")
        held = client.lock("held", ttl=120).acquire()
        proxy.delay(SLOW)

        def work(number: int) -> None:
            while not granted[number]:
                with contextlib.suppress(LocklineError), client.lock(f"n{number}", ttl=120).acquire(timeout=SHORT):
                    granted[number] += 1

        async def tasks() -> None:
            async with aio.connect(f"etcd://127.0.0.1:{other_proxy.port}/slow-tasks") as client:
                held = await client.lock("held", ttl=120).acquire()
                other_proxy.delay(SLOW)

                async def work(number: int) -> None:
                    while not granted[number]:
                        try:
                            lease = await client.lock(f"n{number}", ttl=120).acquire(timeout=SHORT)
                        except LocklineError:
                            continue
                        granted[number] += 1
                        await lease.release()

                async with asyncio.timeout(240):
                    await asyncio.gather(*(work(number) for number in range(4, 8)))
                other_proxy.heal()
                assert held.valid
                await held.release()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        asyncio.run(tasks())
        for thread in threads:
            thread.join(240)
        proxy.heal()
        assert (proxy.accepted, other_proxy.accepted) == (1, 1)
        assert held.valid
        assert all(granted)
        held.release()


@pytest.mark.slow
def test_a_frozen_server_that_goes_on_finds_the_client_where_it_was(tmp_path: Path, client_of: Clients) -> None:
    """Longer than 5 s: a server of its own, frozen for long enough that the client doubts it more than once."""
    cluster = EtcdCluster(tmp_path / "frozen").start()
    server = cluster.members[0].server
    assert server is not None
    try:
        with Proxy(("127.0.0.1", cluster.members[0].port)) as proxy:
            client = client_of(f"etcd://127.0.0.1:{proxy.port}")
            held = client.lock("held", ttl=60).acquire()
            server.freeze()
            outcome: list[object] = []
            thread = threading.Thread(target=lambda: outcome.append(client.lock("x", ttl=60).acquire(timeout=120)))
            most, began = 0, time.monotonic()
            thread.start()
            while time.monotonic() - began < 4:
                most = max(most, len(set(proxy._links.values())))
                time.sleep(0.1)
            made = proxy.accepted
            frozen = time.monotonic() - began
            server.thaw()
            thread.join(60)
            print(
                f"{made} connections in {frozen:.1f} s, at most {most} at once, held: {held.valid}, outcome: {outcome}"
            )
            assert isinstance(outcome[0], lockline.Lease)
            assert held.valid
            assert most <= 2
            assert made <= 1 + frozen // 2  # a second of silence, and one for the answer to a ping
            outcome[0].release()
            held.release()
            wait_for(lambda: len(set(proxy._links.values())) == 1, 60, "the end of the second connection")
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


def test_calls_under_way_end_on_the_connection_that_they_began_on(
    single: EtcdCluster, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another member is asked from now on; what the first one owes is still taken from it, and then it is let go."""
    # The first is left because the test says so, and not for its silence.
    for patience in ("QUIET", "SLOW"):
        monkeypatch.setattr(channel, patience, 3600.0)
    port = single.members[0].port
    with Proxy(("127.0.0.1", port)) as one, Proxy(("127.0.0.1", port)) as two:
        client = client_of(f"etcd://127.0.0.1:{one.port},127.0.0.1:{two.port}/moved")
        way = backend_of(client)._channel
        way._at = 0
        client.lock("warm", ttl=30).acquire().release()
        first = way.link
        assert first is not None
        one.black_hole()
        before = one.requests
        outcome: list[lockline.Lease] = []
        thread = threading.Thread(target=lambda: outcome.append(client.lock("x", ttl=30).acquire(timeout=60)))
        thread.start()
        wait_for(lambda: one.requests > before, 60, "the request")
        assert run(way._move(first, False, way.now() + 60))
        assert way.link is not first
        assert first.grpc.broken is None
        one.heal()
        thread.join(60)
        assert (one.accepted, two.accepted) == (1, 1)
        wait_for(lambda: first.grpc.broken is not None, 60, "the end of the first connection")
        # Nothing was asked twice: the answer came from where the question went.
        assert not backend_of(client)._claims.standing()[0].late
        outcome[0].release()


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
def test_more_callers_than_streams_wait_their_turn_on_one_connection(
    few: EtcdCluster, client_of: Clients, flavour: str
) -> None:
    each = sample(3, 10)
    with Proxy(("127.0.0.1", few.members[0].port)) as proxy:
        url = f"etcd://127.0.0.1:{proxy.port}/{flavour}"
        granted: list[int] = []
        problems: list[LocklineError] = []
        if flavour == "sync":
            client = client_of(url)

            def work(number: int) -> None:
                for _ in range(each):
                    try:
                        with client.lock(f"n{number}", ttl=60).acquire(timeout=60) as lease:
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
                        async with client.lock(f"n{number}", ttl=60) as lease:
                            granted.append(lease.token)

                    await asyncio.gather(*(work(number) for number in range(30 * each)))

            asyncio.run(scene())
        print(f"{len(granted)} granted, {proxy.accepted} connections, {len(problems)} problems")
        assert len(granted) == 30 * each, problems[-1:]
        assert proxy.accepted == 1


def test_one_login_serves_every_connection(guarded: EtcdCluster, client_of: Clients) -> None:
    def logins() -> float:
        metrics = guarded.members[0].metrics()
        return sum(value for key, value in metrics.items() if "handled_total" in key and '"Authenticate"' in key)

    before = logins()
    with Proxy(("127.0.0.1", guarded.members[0].port)) as proxy:
        client = client_of(f"etcd://root:secret@127.0.0.1:{proxy.port}")
        for _ in range(6):
            client.lock("x", ttl=30).acquire(timeout=60).release()
            proxy.cut()
        print(f"{logins() - before} logins on {proxy.accepted} connections")
        assert proxy.accepted > 3
        assert logins() - before == 1
        client.close()


@pytest.mark.slow
def test_a_full_database_is_told_and_asked_on_one_connection(tmp_path: Path, client_of: Clients) -> None:
    """Longer than 5 s: a server of its own starts, is filled, and is asked again for two seconds."""
    cluster = EtcdCluster(tmp_path / "full", options=("--quota-backend-bytes=2000000",)).start()
    try:
        with Proxy(("127.0.0.1", cluster.members[0].port)) as proxy:
            client = client_of(f"etcd://127.0.0.1:{proxy.port}")
            client.lock("warm", ttl=60).acquire().release()
            try:
                for number in range(100):
                    post(cluster, "kv/put", key=text(f"big{number}"), value=text("x" * 100_000))
            except OSError:
                pass  # full

            before, calls = proxy.requests, 0

            def is_named() -> bool:
                nonlocal calls
                calls += 1
                with pytest.raises(BackendUnavailable) as told:
                    client.lock("x", ttl=60).acquire(timeout=2)
                return "space" in str(told.value)

            # On a busy machine an answer may take longer than that.
            wait_for(is_named, 60, "the reason")
            print(f"{proxy.accepted} connections, {proxy.requests} packets")
            assert proxy.accepted == 1
            assert proxy.requests - before < 120 * calls
            client.close()
    finally:
        cluster.stop()
