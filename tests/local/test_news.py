"""What reaches a holder and a loop in time: an eviction at once, other tasks their turn, and nothing is left of who was dropped."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lockline
from lockline import aio
from lockline.core import keeper
from lockline.runtime import fairness

from ..calm import calm

TTL = 600.0
"""Far beyond the test: no renewal finds out before the push does."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"local://{tmp_path}/local.db"


def wait_for(condition: Callable[[], object], seconds: float = 60.0, what: Callable[[], object] = str) -> None:
    until = calm() + seconds
    while not condition():
        assert calm() < until, what()
        time.sleep(0.001)


def wait_until_the_keeper_sleeps(client: lockline.Client) -> None:
    """It has taken notice of all that was done before, and looks round no more by itself."""
    signal: Any = client._engine._keeper._worker._signal
    wait_for(lambda: signal._asleep and not signal.is_set())


@pytest.fixture
def no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keeper that does not look round by itself while the test runs."""
    monkeypatch.setattr(keeper, "TICK", 3600.0)


STORM = 100
"""Evictions at once: more than find room in the queue of a socket."""


def test_every_holder_hears_of_its_eviction_also_where_there_was_no_room_for_the_word(url: str) -> None:
    with lockline.connect(url) as holder, lockline.connect(url) as operator:
        leases = [holder.lock(f"x{number}", ttl=TTL).acquire() for number in range(STORM)]
        # While the keeper reads nothing: as on a busy machine, or one whose debugger stopped it.
        hear, go_on = holder._engine._hints.heard, threading.Event()

        def slowly(claim_id: str) -> None:
            go_on.wait(60)
            hear(claim_id)

        holder._engine._hints.heard = slowly  # type: ignore[method-assign]
        assert sum(operator.evict(f"x{number}") for number in range(STORM)) == STORM
        go_on.set()
        wait_for(lambda: not any(lease.valid for lease in leases))


def test_every_task_hears_of_its_eviction_also_where_there_was_no_room_for_the_word(url: str) -> None:
    async def story() -> None:
        async with aio.connect(url) as holder:
            leases = [await holder.lock(f"x{number}", ttl=TTL).acquire() for number in range(STORM)]
            with lockline.connect(url) as operator:  # on the loop, so that nobody reads meanwhile
                assert sum(operator.evict(f"x{number}") for number in range(STORM)) == STORM
            until = calm() + 60
            while any(lease.valid for lease in leases):
                assert calm() < until
                await asyncio.sleep(0.01)

    asyncio.run(story())


@pytest.mark.usefixtures("no_tick")
def test_a_holder_hears_of_its_eviction_without_the_keepers_tick(url: str) -> None:
    with lockline.connect(url) as holder, lockline.connect(url) as operator:
        lease = holder.lock("x", ttl=TTL).acquire()
        told = threading.Event()
        lease.on_lost(told.set)
        wait_until_the_keeper_sleeps(holder)
        assert operator.evict("x") == 1
        assert told.wait(60)
        with pytest.raises(lockline.LeaseLost, match="evicted"):
            lease.check()


@pytest.mark.usefixtures("no_tick")
def test_a_holder_hears_of_its_eviction_while_another_thread_of_its_client_waits(url: str) -> None:
    """Whoever waits reads for all; what it reads of a held lease must not get lost."""
    with lockline.connect(url) as client, lockline.connect(url) as other:
        lease = client.lock("x", ttl=TTL).acquire()
        in_the_way = other.lock("y", ttl=TTL).acquire()
        waits = threading.Thread(target=lambda: client.lock("y", ttl=TTL).acquire(timeout=120).release())
        waits.start()
        wait_for(lambda: other.inspect("y").waiters)
        wait_until_the_keeper_sleeps(client)
        other.evict("x")
        wait_for(lambda: lease.lost.is_set())
        # Also where the word comes as it did before keepers had an ear of their own.
        again = client.lock("x", ttl=TTL).acquire(timeout=60)
        wait_until_the_keeper_sleeps(client)
        backend = other._engine.backend
        backend._peers.tell_keeper = backend._peers.tell  # type: ignore[attr-defined]
        other.evict("x")
        wait_for(lambda: again.lost.is_set())
        in_the_way.release()
        waits.join(60)


@pytest.mark.usefixtures("no_tick")
def test_a_child_hears_of_its_eviction_too(tmp_path: Path) -> None:
    from .programs import run

    told = run(
        """
from lockline.core import keeper
keeper.TICK = 3600.0
client = lockline.connect(url)
client.lock("warm").acquire().release()
holds = os.pipe()
child = os.fork()
if child == 0:
    lease = client.lock("x", ttl=600).acquire()
    signal = client._engine._keeper._worker._signal
    while not signal._asleep or signal.is_set():
        time.sleep(0.001)
    os.write(holds[1], b"1")
    os.write(1, b"told\\n" if lease.lost.wait(60) else b"not told\\n")
    os._exit(0)
os.read(holds[0], 1)
client.evict("x")
os.waitpid(child, 0)
""",
        f"local://{tmp_path}/local.db",
    )
    assert told == "told"


@pytest.mark.parametrize("store", ["memory:turns", "local"])
def test_other_tasks_have_their_turn_beside_one_that_locks_all_the_time(url: str, store: str) -> None:
    async def story() -> tuple[int, float]:
        turns, longest, last = 0, 0.0, time.monotonic()

        async def other() -> None:
            nonlocal turns, longest, last
            while True:
                await asyncio.sleep(0)
                now = time.monotonic()
                turns, longest, last = turns + 1, max(longest, now - last), now

        async with aio.connect(store if store != "local" else url) as client:
            beside = asyncio.create_task(other())
            async with asyncio.timeout(120):
                for _ in range(1000):
                    async with client.lock("x"):
                        pass
                    await client.inspect("x")
            beside.cancel()
        return turns, longest

    turns, _ = asyncio.run(story())
    assert turns > 5


@pytest.mark.parametrize("store", ["memory:deadline", "local"])
def test_a_timeout_ends_a_task_that_locks_all_the_time(url: str, store: str) -> None:
    async def story() -> None:
        async with aio.connect(store if store != "local" else url) as client, asyncio.timeout(0.2):
            while True:
                async with client.lock("x"):
                    pass

    with pytest.raises(TimeoutError):
        asyncio.run(story())


def test_a_pause_costs_little() -> None:
    assert fairness.LONGEST_RUN >= 0.0005


def handles() -> list[str]:
    """The open handles, and what they are on; without the one that it takes to list them."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            names.append(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return names


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts handles in /proc")
def test_a_client_that_was_dropped_leaves_no_handle_and_no_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "LINGER", 0.0)
    monkeypatch.setattr(keeper, "TICK", 0.01)
    gc.collect()
    before = handles()
    for _ in range(10):
        lockline.connect(url).lock("x").acquire().release()

    def left() -> tuple[list[str], list[str]]:
        gc.collect()
        return sorted(set(handles()) - set(before)), [path.name for path in (tmp_path / "local.db-peers").iterdir()]

    wait_for(lambda: left() == ([], []), what=left)


@pytest.mark.filterwarnings("ignore::lockline.LeaseDropped")
def test_what_a_dropped_client_held_is_cleared_away_by_the_next(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def dropped() -> None:
        client = aio.connect(url)
        await client.lock("x", ttl=TTL, renew=False).acquire()

    asyncio.run(dropped())
    gc.collect()
    with lockline.connect(url) as client:
        client.lock("x").acquire(timeout=60).release()


def test_a_thousand_leases_are_released_on_close(url: str) -> None:
    with lockline.connect(url) as client:
        leases = [client.lock(f"n{number}", ttl=TTL).acquire() for number in range(1200)]
        client.close()
    with lockline.connect(url) as other:
        assert other.list() == []
    assert not any(lease.valid for lease in leases)


def test_a_socket_that_is_swept_up_before_its_client_says_nothing_and_stays_the_clients(
    url: str, tmp_path: Path
) -> None:
    # In one sweep of garbage Python ends the parts in an order of its own.
    client = lockline.connect(url)
    client.lock("x").acquire().release()
    listeners: list[Any] = [
        one for one in gc.get_objects() if type(one).__name__ == "PeerListener" and one.folder.parent == tmp_path
    ]
    assert listeners
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for listener in listeners:
            listener.socket.__del__()
            assert listener.socket.fileno() >= 0
    client.close()
    assert list((tmp_path / "local.db-peers").iterdir()) == []
