"""Many of one client at once, on a machine that has other things to do: all are served, and nobody loses a lease by it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lockline
from lockline import aio
from lockline.core.claim import Claim, Unanswered
from lockline.errors import BackendUnavailable
from lockline.runtime.blocking import run

from ..servers.etcd import EtcdCluster
from .conftest import backend_of

pytestmark = [pytest.mark.server, pytest.mark.slow]
Clients = Callable[..., lockline.Client]

WAITERS = 2000


@contextmanager
def _a_busy_machine() -> Iterator[None]:
    """So many others that never rest as make twice as many as processors, at most two: what else runs here has to be in time too."""
    others = max(0, min(2, round(2 * (os.cpu_count() or 1) - os.getloadavg()[0])))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(others)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _connections_to(port: int) -> int:
    """How many connections to this port there are on this machine, by the system's own list."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[2].endswith(f":{port:04X}") and row[3] == "01" for row in rows)


def test_two_thousand_waiters_of_one_client_on_a_busy_machine_are_all_granted(single: EtcdCluster) -> None:
    granted: list[int] = []
    problems: list[BaseException] = []
    port = single.members[0].port
    before = _connections_to(port)

    async def scene() -> int:
        most = 0
        async with aio.connect(f"{single.url}/load") as client:

            async def wait() -> None:
                try:
                    async with await client.lock("x").acquire(timeout=280) as lease:
                        granted.append(lease.token)
                except lockline.LocklineError as problem:
                    problems.append(problem)

            waiting = asyncio.gather(*(wait() for _ in range(WAITERS)))
            while not waiting.done():
                most = max(most, _connections_to(port) - before)
                await asyncio.sleep(0.2)
            await waiting
        return most

    with _a_busy_machine():
        began = time.monotonic()
        most = asyncio.run(scene())
        took = time.monotonic() - began
    print(f"{len(granted)} of {WAITERS} granted in {took:.1f} s on at most {most} connections; {problems[:1]}")
    assert len(granted) == WAITERS
    assert granted == sorted(granted)
    assert 1 <= most <= 2


def test_a_held_lease_outlives_fifty_busy_threads_of_its_client(single: EtcdCluster, client_of: Clients) -> None:
    ttl = 3.0
    client = client_of(f"{single.url}/busy")
    held = client.lock("held", ttl=ttl).acquire()
    until = time.monotonic() + 2 * ttl
    granted = [0] * 50
    longest = [0.0] * 50

    def work(number: int) -> None:
        while time.monotonic() < until:
            began = time.monotonic()
            with client.lock(f"n{number}", ttl=30).acquire(timeout=30):
                granted[number] += 1
            longest[number] = max(longest[number], time.monotonic() - began)

    with _a_busy_machine():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(f"{sum(granted)} granted, {min(granted)} to {max(granted)} each, the longest took {max(longest):.2f} s")
    assert held.valid
    assert min(granted) > 0
    held.release()


def test_a_held_lease_outlives_busy_tasks_beyond_all_streams(single: EtcdCluster) -> None:
    ttl = 3.0

    async def scene() -> None:
        async with aio.connect(f"{single.url}/busy-tasks") as client:
            held = await client.lock("held", ttl=ttl).acquire()
            until = time.monotonic() + 2 * ttl
            granted = [0] * 400

            async def work(number: int) -> None:
                while time.monotonic() < until:
                    async with await client.lock(f"n{number}", ttl=30).acquire(timeout=30):
                        granted[number] += 1

            await asyncio.gather(*(work(number) for number in range(len(granted))))
            print(f"{sum(granted)} granted, {min(granted)} to {max(granted)} each")
            assert held.valid
            assert min(granted) > 0
            await held.release()

    asyncio.run(scene())


@pytest.mark.parametrize("answered", [1, 2])
def test_a_renewal_that_is_cut_short_counts_for_those_who_were_answered(
    single: EtcdCluster, client_of: Clients, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    client = client_of(f"{single.url}/part-{answered}")
    backend = backend_of(client)
    now = backend._runtime.now
    claims = [Claim(f"x{n}", f"part-{n}", "me", "lock", 1, 1, 60.0, 0.0, "") for n in range(250)]
    for claim in claims:
        run(backend.enter(claim, wait=True, until=now() + 10))
    seen, asked = backend._claims._ask_quorum, []

    async def silent_after(batch: Any, until: float) -> Any:
        asked.append(batch)
        if len(asked) > answered:
            raise BackendUnavailable("silent")
        return await seen(batch, until)

    monkeypatch.setattr(backend._claims, "_ask_quorum", silent_after)
    fates = run(backend.renew(claims, now() + 10))
    assert [fate is None for fate in fates] == [n < 100 * answered for n in range(250)]
    assert all(isinstance(fate, Unanswered) for fate in fates[100 * answered :])
    run(backend.leave_all(claims, now() + 10))
