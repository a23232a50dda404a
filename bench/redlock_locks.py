"""`redlock://` on five servers against pottery and redlock-py on the same five, one server by `redis://`, and bare sockets.

python bench/redlock_locks.py [--seconds 2] [--rounds 12] [--processes 8] [--profile]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import multiprocessing
import select
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import hiredis
import redis
from redlock_profile import Way, blocking, in_a_loop, where_time_goes
from report import Report

import lockline
from lockline.backends.redlock import commands
from tests.redlock.servers import Servers, servers
from tests.servers.redis import RedisServer, a_redis

Pair = Callable[[], None]


def redlock_pair(five: Servers, name: str) -> Pair:
    lock = lockline.connect(five.url).lock(name)
    return lambda: lock.acquire().release()


def one_server_pair(url: str, name: str) -> Pair:
    lock = lockline.connect(url).lock(name)
    return lambda: lock.acquire().release()


def pottery_pair(five: Servers, name: str) -> Pair:
    import pottery

    lock = pottery.Redlock(key=name, masters={redis.Redis(port=node.port) for node in five.nodes}, auto_release_time=10)

    def pair() -> None:
        lock.acquire()
        lock.release()

    return pair


def redlock_py_pair(five: Servers, name: str) -> Pair:
    import redlock

    manager = redlock.Redlock([redis.Redis(port=node.port) for node in five.nodes])

    def pair() -> None:
        lock = manager.lock(name, 10_000)
        manager.unlock(lock)

    return pair


def bare_pair(five: Servers, name: str) -> Pair:
    """The limit: the same two scripts over five plain sockets, returning at the majority."""
    with lockline.connect(five.url) as client:
        client.lock("load the scripts").acquire().release()
        cluster = client._engine.backend.channel.cluster  # type: ignore[attr-defined]
    wires = [socket.create_connection(("127.0.0.1", node.port)) for node in five.nodes]
    for wire in wires:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    poll = select.poll()
    for wire in wires:
        poll.register(wire, select.POLLIN)
    by_fd = {wire.fileno(): (wire, hiredis.Reader()) for wire in wires}
    owed = dict.fromkeys(by_fd, 0)
    numbers = iter(range(10**9))

    def ask(request: commands.NodeRequest) -> None:
        data = commands.packed(request, cluster)
        for wire in wires:
            wire.sendall(data)
            owed[wire.fileno()] += 1
        answered = 0
        while answered < 3:
            for fd, _ in poll.poll():
                wire, reader = by_fd[fd]
                reader.feed(wire.recv(65536))
                while reader.gets() is not False:
                    owed[fd] -= 1
                    answered += owed[fd] == 0

    def pair() -> None:
        attempt = f"bare-{next(numbers)}.1"
        ask(commands.acquire(name, attempt, 10_000, time.time_ns() // 1000, "-"))
        ask(commands.release(name, attempt, 0, 0))

    return pair


def timed(pair: Pair, seconds: float) -> float:
    """Microseconds for one acquire and release."""
    count = 0
    began = time.perf_counter()
    until = began + seconds
    while (now := time.perf_counter()) < until:
        pair()
        count += 1
    return (now - began) / count * 1e6


class AsyncPair:
    """The asyncio flavour, timed inside its own loop."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    def timed(self, seconds: float) -> float:
        async def go() -> float:
            async with lockline.aio.connect(self._url) as client:
                lock = client.lock(self._name)
                for _ in range(50):
                    await (await lock.acquire()).release()
                count = 0
                began = time.perf_counter()
                until = began + seconds
                while (now := time.perf_counter()) < until:
                    await (await lock.acquire()).release()
                    count += 1
                return (now - began) / count * 1e6

        return asyncio.run(go())


def uncontended(report: Report, five: Servers, url: str, seconds: float, rounds: int) -> dict[str, float]:
    pairs = {
        "redlock, sync": redlock_pair(five, "bench"),
        "redis://, sync": one_server_pair(url, "bench"),
        "bare sockets": bare_pair(five, "bare"),
        "redlock-py": redlock_py_pair(five, "redlock-py"),
        "pottery": pottery_pair(five, "pottery"),
    }
    loops = {"redlock, asyncio": AsyncPair(five.url, "aio"), "redis://, asyncio": AsyncPair(url, "aio")}
    for pair in pairs.values():
        timed(pair, 0.2)
    found: dict[str, list[float]] = {name: [] for name in (*pairs, *loops)}
    # In turns, so that whatever else the machine does hits them all.
    for _ in range(rounds):
        for name, pair in pairs.items():
            found[name].append(timed(pair, seconds / rounds))
        for name, loop in loops.items():
            found[name].append(loop.timed(seconds / rounds))
    # The best round of each: what it costs when nothing else runs on the machine.
    best = {name: min(times) for name, times in found.items()}
    ours = best["redlock, sync"]
    report.table(
        f"uncontended, {len(five)} servers: one acquire and release",
        [
            {"who": name, "µs": best[name], "pairs/s": 1e6 / best[name], "times ours": best[name] / ours}
            for name in (
                "redis://, sync",
                "bare sockets",
                "redlock, sync",
                "redlock, asyncio",
                "redis://, asyncio",
                "redlock-py",
                "pottery",
            )
        ],
    )
    return best


def profiled(report: Report, five: Servers, single: RedisServer, seconds: float, rounds: int) -> None:
    """The CPU that a pair costs, on both sides of the wire, and the bare limit beside it."""
    one, one_in_a_loop = "redis://, blocking", "redis://, asyncio"
    ways = [
        Way(one, blocking(one_server_pair(single.url, "spent")), [single], one),
        Way("five bare sockets", blocking(bare_pair(five, "bare spent")), five.nodes, one),
        Way("redlock://, blocking", blocking(redlock_pair(five, "spent")), five.nodes, one),
        Way(one_in_a_loop, in_a_loop(single.url, "spent in a loop"), [single], one_in_a_loop),
        Way("redlock://, asyncio", in_a_loop(five.url, "spent in a loop"), five.nodes, one_in_a_loop),
    ]
    where_time_goes(report, ways, seconds, rounds)


def contender(url: str, seconds: float, pipe: Connection) -> None:
    with lockline.connect(url) as client:
        lock = client.lock("contended")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                lock.acquire(timeout=5).release()
            except lockline.LocklineError:
                continue
        protocol = client._engine.backend.protocol  # type: ignore[attr-defined]
        pipe.send((protocol.grants, protocol.one_trip))


def contended(report: Report, five: Servers, seconds: float, processes: int) -> None:
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for _ in range(processes):
        here, there = context.Pipe()
        children.append(context.Process(target=contender, args=(five.url, seconds, there)))
        pipes.append(here)
    for child in children:
        child.start()
    counts = [pipe.recv() for pipe in pipes]
    for child in children:
        child.join()
    grants, once = (sum(count[at] for count in counts) for at in range(2))
    report.table(
        f"{processes} contenders for one name",
        [
            {
                "grants/s": grants / seconds,
                "in one round trip, %": 100 * once / max(1, grants),
                "fewest": min(counts)[0],
                "most": max(counts)[0],
            }
        ],
    )


def one_trip(report: Report, five: Servers) -> None:
    with lockline.connect(five.url) as client:
        for number in range(3000):
            client.lock(f"name-{number % 300}").acquire().release()
        protocol = client._engine.backend.protocol  # type: ignore[attr-defined]
        report.table(
            "uncontended grants in one round trip",
            [{"grants": protocol.grants, "%": 100 * protocol.one_trip / protocol.grants}],
        )


def failures(report: Report, five: Servers, seconds: float) -> None:
    rows: list[dict[str, Any]] = []
    pair = redlock_pair(five, "failing")
    timed(pair, 0.3)
    usual = min(timed(pair, seconds / 4) for _ in range(3))
    rows.append({"servers": "all five", "µs": usual, "times": 1.0})
    for what in ("frozen", "dead"):
        for node in five.nodes[1:3]:
            node.freeze() if what == "frozen" else node.kill()
        timed(pair, 1.0)
        slowed = min(timed(pair, seconds / 4) for _ in range(3))
        rows.append({"servers": f"two {what}", "µs": slowed, "times": slowed / usual})
        for node in five.nodes[1:3]:
            node.thaw() if what == "frozen" else node.start()
    report.table("with two of five away", rows)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=3.0)
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--processes", type=int, default=8)
    options.add_argument("--profile", action="store_true", help="only where the time of a pair goes")
    chosen = options.parse_args()
    versions = {name: importlib.metadata.version(name) for name in ("redis", "hiredis", "pottery", "redlock-py")}
    report = Report("redlock", versions)
    with servers(5) as five, a_redis() as single:
        if chosen.profile:
            profiled(report, five, single, chosen.seconds, chosen.rounds)
            return
        uncontended(report, five, single.url, chosen.seconds, chosen.rounds)
        profiled(report, five, single, chosen.seconds, chosen.rounds)
        one_trip(report, five)
        contended(report, five, chosen.seconds * 2, chosen.processes)
        failures(report, five, chosen.seconds)
    report.write()


if __name__ == "__main__":
    main()
