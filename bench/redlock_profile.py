"""Where the time of a pair goes on five servers: the CPU that each side takes of it, and the system calls of the client.

`python bench/redlock_locks.py --profile` prints these tables alone. All of the work has to be done by the cores there are: however a
client overlaps it, pairs cannot follow each other faster than their CPU divided by the cores.
"""

from __future__ import annotations

import asyncio
import cProfile
import os
import pstats
import resource
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from report import Report

from lockline import aio
from tests.servers.redis import RedisServer

Run = Callable[[float], int]
"""Does pairs for so many seconds; how many it did."""

SYSTEM_CALLS = {
    "send": ("'send' of '_socket.socket'", "'sendall' of '_socket.socket'"),
    "recv": ("'recv' of '_socket.socket'",),
    "poll": ("'poll' of 'select.poll'", "'poll' of 'select.epoll'"),
}
"""Methods of sockets and pollers, as the profiler calls them."""


class Way(NamedTuple):
    """One way to take a lock and give it back."""

    who: str
    run: Run
    nodes: Sequence[RedisServer]
    """Whom it asks."""
    than: str
    """Whose time it is compared with."""


class Spent(NamedTuple):
    """Microseconds of one pair: in all, and of CPU on each side of the wire."""

    wall: float
    client_python: float
    client_kernel: float
    servers_own: float
    servers_kernel: float

    @property
    def in_all(self) -> float:
        return sum(self[1:])


def blocking(pair: Callable[[], None]) -> Run:
    def run(seconds: float) -> int:
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            pair()
            count += 1
        return count

    return run


def in_a_loop(url: str, name: str) -> Run:
    """The asyncio flavour, with one client for all rounds: what a connection costs is not what a pair costs."""
    loop = asyncio.new_event_loop()
    clients: list[aio.Client] = []

    async def go(seconds: float) -> int:
        if not clients:
            clients.append(aio.connect(url))
        lock = clients[0].lock(name)
        count, until = 0, time.perf_counter() + seconds
        while time.perf_counter() < until:
            await (await lock.acquire()).release()
            count += 1
        return count

    return lambda seconds: loop.run_until_complete(go(seconds))


def _servers(nodes: Sequence[RedisServer]) -> tuple[float, float]:
    told = [node.command("INFO", "cpu") for node in nodes]
    return sum(float(cpu["used_cpu_user"]) for cpu in told), sum(float(cpu["used_cpu_sys"]) for cpu in told)


def spent(way: Way, seconds: float) -> Spent:
    """What a pair costs now."""
    served, before, began = _servers(way.nodes), resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    pairs = way.run(seconds)
    took, after, serves = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF), _servers(way.nodes)
    parts = (
        took,
        after.ru_utime - before.ru_utime,
        after.ru_stime - before.ru_stime,
        serves[0] - served[0],
        serves[1] - served[1],
    )
    return Spent(*(part / pairs * 1e6 for part in parts))


def called(way: Way, seconds: float) -> dict[str, float]:
    """How often a pair asks the client's kernel for what, and for how many microseconds it is there, asleep or not."""
    profile = cProfile.Profile()
    profile.enable()
    pairs = way.run(seconds)
    profile.disable()
    found: dict[str, float] = {}
    # The types of pstats do not know what it is made of.
    stats = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
    for call, names in SYSTEM_CALLS.items():
        hits = [figures for (_, _, method), figures in stats if any(f"method {name}" in method for name in names)]
        found[f"{call}s"] = sum(figures[1] for figures in hits) / pairs
        found[f"µs in {call}"] = sum(figures[2] for figures in hits) / pairs * 1e6
    return found


def where_time_goes(report: Report, ways: Sequence[Way], seconds: float, rounds: int, wanted: float = 1.6) -> None:
    """Print both tables: medians of rounds that take turns, so that whatever else the machine does hits all ways."""
    cores = len(os.sched_getaffinity(0))
    for way in ways:
        way.run(0.3)
    samples: dict[str, list[Spent]] = {way.who: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            samples[way.who].append(spent(way, seconds / rounds))
    usual = {who: Spent(*map(statistics.median, zip(*all_of_it, strict=True))) for who, all_of_it in samples.items()}
    best = {who: min(one.wall for one in all_of_it) for who, all_of_it in samples.items()}
    report.table(
        f"where the time of a pair goes: µs, medians of {rounds} rounds",
        [
            {
                "who": way.who, "best": best[way.who], "median": (cost := usual[way.who]).wall,
                "times redis://": cost.wall / usual[way.than].wall, "CPU: client, Python": cost.client_python,
                "client, kernel": cost.client_kernel, "servers": cost.servers_own, "servers, kernel": cost.servers_kernel,
                "in all": cost.in_all, f"least on {cores} cores": cost.in_all / cores,
                f"{wanted} times redis://": wanted * usual[way.than].wall,
            }
            for way in ways
        ],
    )  # fmt: skip
    report.table(
        "system calls of the client, under the profiler",
        [{"who": way.who, **called(way, seconds / rounds)} for way in ways],
    )
