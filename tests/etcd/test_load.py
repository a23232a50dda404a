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

from ..renewed import renewal_of
from ..servers.etcd import EtcdCluster
from ..servers.process import wait_for
from ..tier import FULL, sample
from .conftest import backend_of

pytestmark = [pytest.mark.server, pytest.mark.slow]
Clients = Callable[..., lockline.Client]

WAITERS = sample(120, 2000)
REST = sample(0.2, 0.0)
"""Seconds between two locks of one that is busy: fifty of them still come in bursts, and the machine has time for other tests."""


@contextmanager
def _a_busy_machine() -> Iterator[None]:
    """So many others that never rest as make twice as many as processors, at most two: what else runs here has to be in time too.

    In the full run alone: beside other tests the machine is busy enough.
    """
    others = FULL and max(0, min(2, round(2 * (os.cpu_count() or 1) - os.getloadavg()[0])))
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


def test_very_many_waiters_of_one_client_on_a_busy_machine_are_all_granted(single: EtcdCluster) -> None:
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
    client = client_of(f"{single.url}/busy")
    held = client.lock("held", ttl=6).acquire()
    granted, over, kept = [0] * 50, threading.Event(), renewal_of(held)

    def work(number: int) -> None:
        while not over.is_set():
            with client.lock(f"n{number}", ttl=60).acquire(timeout=120):
                granted[number] += 1
            over.wait(REST)

    with _a_busy_machine():
        threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        wait_for(lambda: min(granted) > 0 and kept(), 120, "a grant of each thread, and a renewal")
        over.set()
        for thread in threads:
            thread.join()
    print(f"{sum(granted)} granted, {min(granted)} to {max(granted)} each")
    assert held.valid
    held.release()


def test_a_held_lease_outlives_busy_tasks_beyond_all_streams(single: EtcdCluster) -> None:
    async def scene() -> None:
        async with aio.connect(f"{single.url}/busy-tasks") as client:
            held = await client.lock("held", ttl=6).acquire()
            kept = renewal_of(held)
            granted = [0] * sample(100, 400)

            async def work(number: int) -> None:
                while not (granted[number] and kept()):
                    async with await client.lock(f"n{number}", ttl=60).acquire(timeout=120):
                        granted[number] += 1
                    await asyncio.sleep(REST)

            async with asyncio.timeout(120):
                await asyncio.gather(*(work(number) for number in range(len(granted))))
            print(f"{sum(granted)} granted, {min(granted)} to {max(granted)} each")
            assert held.valid
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
        run(backend.enter(claim, wait=True, until=now() + 60))
    seen, asked = backend._claims._ask_quorum, []

    async def silent_after(batch: Any, until: float) -> Any:
        asked.append(batch)
        if len(asked) > answered:
            raise BackendUnavailable("silent")
        return await seen(batch, until)

    monkeypatch.setattr(backend._claims, "_ask_quorum", silent_after)
    fates = run(backend.renew(claims, now() + 60))
    assert [fate is None for fate in fates] == [n < 100 * answered for n in range(250)]
    assert all(isinstance(fate, Unanswered) for fate in fates[100 * answered :])
    run(backend.leave_all(claims, now() + 60))
