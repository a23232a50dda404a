"""`redis://` against redis-py's Lock, python-redis-lock and pottery, and against the limit: the same scripts on a bare socket.

One server over loopback, everything in one run:

python bench/redis_locks.py [--seconds 3] [--rounds 5] [--processes 16 64] [--held 10000 --hold 120]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import multiprocessing
import os
import resource
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
import redis.asyncio
from report import Report, jain, percentile

import lockline
from lockline.backends.redis.scripts import ENTER, LEAVE
from tests.servers.redis import RedisServer, a_redis

Pair = Callable[[], None]


# -- one way to take and give back a lock, each -----------------------------------------------------


def lockline_pair(port: int, name: str) -> Pair:
    lock = lockline.connect(f"redis://127.0.0.1:{port}").lock(name)

    def pair(work: Callable[[], None]) -> None:
        lease = lock.acquire()
        work()
        lease.release()

    return pair  # type: ignore[return-value]


def redis_py_pair(port: int, name: str, sleep: float = 0.1) -> Pair:
    lock = redis.Redis(port=port).lock(name, timeout=10, sleep=sleep)

    def pair(work: Callable[[], None]) -> None:
        lock.acquire()
        work()
        lock.release()

    return pair  # type: ignore[return-value]


def redis_py_eager_pair(port: int, name: str) -> Pair:
    return redis_py_pair(port, name, sleep=0.001)


def python_redis_lock_pair(port: int, name: str) -> Pair:
    import redis_lock

    client = redis.Redis(port=port)

    def pair(work: Callable[[], None]) -> None:
        lock = redis_lock.Lock(client, name, expire=10)
        lock.acquire()
        work()
        lock.release()

    return pair  # type: ignore[return-value]


def pottery_pair(port: int, name: str) -> Pair:
    import pottery

    lock = pottery.Redlock(key=name, masters={redis.Redis(port=port)}, auto_release_time=10)

    def pair(work: Callable[[], None]) -> None:
        lock.acquire()
        work()
        lock.release()

    return pair  # type: ignore[return-value]


def bare_pair(port: int, name: str) -> Pair:
    """The limit: the same two scripts over a plain socket with hiredis, and nothing else."""
    client = redis.Redis(port=port)
    for script in (ENTER, LEAVE):
        client.script_load(script.body)
    client.close()
    wire = socket.create_connection(("127.0.0.1", port))
    wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = hiredis.Reader()
    key = f"{{ll:{name}}}"

    def ask(*words: Any) -> Any:
        wire.sendall(hiredis.pack_command(words))
        while (reply := reader.gets()) is False:
            reader.feed(wire.recv(65536))
        return reply

    def pair(work: Callable[[], None]) -> None:
        ask("EVALSHA", ENTER.sha, 1, key, "0123456789abcdef-1", 10000, 1, 1, "-", '10.0 lock 1.0 "host:1"', "1")
        work()
        ask("EVALSHA", LEAVE.sha, 1, key, "0123456789abcdef-1", "0")

    return pair  # type: ignore[return-value]


PEERS: dict[str, Callable[[int, str], Any]] = {
    "lockline": lockline_pair,
    "redis-py": redis_py_pair,
    "redis-py, sleep 1 ms": redis_py_eager_pair,
    "python-redis-lock": python_redis_lock_pair,
    "pottery": pottery_pair,
}


def nothing() -> None:
    pass


def a_millisecond() -> None:
    time.sleep(0.001)


# -- uncontended --------------------------------------------------------------------------------------


def uncontended(server: RedisServer, rounds: int) -> list[dict[str, object]]:
    """Best of several rounds that go round all ways, so that a noisy moment hits everybody."""
    ways = {"bare socket": bare_pair, **{name: make for name, make in PEERS.items() if "sleep" not in name}}
    pairs = {name: make(server.port, f"alone-{name}") for name, make in ways.items()}
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(4 * rounds):
        for name, pair in pairs.items():
            count = 50 if name == "pottery" else 500
            for _ in range(count // 10):
                pair(nothing)
            began = time.perf_counter()
            for _ in range(count):
                pair(nothing)
            best[name] = min(best[name], (time.perf_counter() - began) / count)
    limit = best["bare socket"]
    return [
        {
            "": name,
            "µs per pair": took * 1e6,
            "of the limit": took / limit,
            "times redis-py's speed": best["redis-py"] / took,
        }
        for name, took in best.items()
    ]


# -- many processes -----------------------------------------------------------------------------------


def _contender(peer: str, port: int, seconds: float, holds: bool, gate: Any, answer: Connection) -> None:
    pair = PEERS[peer](port, "contended")
    work = a_millisecond if holds else nothing
    waits: list[float] = []
    gate.wait()
    until = time.perf_counter() + seconds
    while (began := time.perf_counter()) < until:
        pair(lambda: (waits.append(time.perf_counter() - began), work()))
    answer.send(waits)
    answer.close()
    os._exit(0)  # the peers' background threads would keep the process


def contended(server: RedisServer, peer: str, processes: int, seconds: float, holds: bool) -> dict[str, object]:
    """So many processes on one lock for so long."""
    server.command("FLUSHALL")
    fork = multiprocessing.get_context("fork")
    gate = fork.Barrier(processes + 1)
    crowd, pipes = [], []
    for _ in range(processes):
        mine, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=_contender, args=(peer, server.port, seconds, holds, gate, theirs))
        process.start()
        theirs.close()
        crowd.append(process)
        pipes.append(mine)
    server.command("CONFIG", "RESETSTAT")
    before = cpu(server)
    gate.wait()
    all_waits = [pipe.recv() for pipe in pipes]
    for process in crowd:
        process.join(30)
    used = cpu(server) - before
    counts = [len(waits) for waits in all_waits]
    ordered = sorted(wait for waits in all_waits for wait in waits)
    grants = max(1, len(ordered))
    return {
        "": peer,
        "grants/s": grants / seconds,
        "Jain": jain(counts),
        "fewest": min(counts),
        "p50 wait ms": percentile(ordered, 0.5) * 1e3,
        "p99 wait ms": percentile(ordered, 0.99) * 1e3,
        "p99 in fair turns": percentile(ordered, 0.99) / (processes * seconds / grants),
        "server µs/grant": used / grants * 1e6,
        "requests/grant": requests(server) / grants,
    }


def cpu(server: RedisServer) -> float:
    """Seconds of CPU that the server has used."""
    info = server.command("INFO", "cpu")
    return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])


TOP_LEVEL = ("evalsha", "eval", "set", "blpop")
"""What these lock libraries send; their other commands run inside scripts."""


def requests(server: RedisServer) -> float:
    """Requests that clients sent since the figures were reset."""
    stats = server.command("INFO", "commandstats")
    return float(sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in TOP_LEVEL))


# -- asyncio --------------------------------------------------------------------------------------------


async def many_tasks(server: RedisServer, seconds: float, tasks: int = 100) -> list[dict[str, object]]:
    """A hundred tasks, each on its own lock."""

    async def measure(make: Callable[[int], Callable[[], Any]]) -> float:
        done = 0
        until = time.perf_counter() + seconds

        async def one(pair: Callable[[], Any]) -> None:
            nonlocal done
            while time.perf_counter() < until:
                await pair()
                done += 1

        await asyncio.gather(*(one(make(n)) for n in range(tasks)))
        return done / seconds

    client = lockline.aio.connect(server.url)

    def with_lockline(n: int) -> Callable[[], Any]:
        lock = client.lock(f"task-{n}")

        async def pair() -> None:
            await (await lock.acquire()).release()

        return pair

    plain = redis.asyncio.Redis(port=server.port, max_connections=200)

    def with_redis(n: int) -> Callable[[], Any]:
        lock = plain.lock(f"plain-{n}", timeout=10)

        async def pair() -> None:
            await lock.acquire()
            await lock.release()

        return pair

    ours = max([await measure(with_lockline) for _ in range(2)])
    theirs = max([await measure(with_redis) for _ in range(2)])
    await client.close()
    await plain.aclose()
    return [
        {"": "lockline", "pairs/s": ours, "times redis.asyncio": ours / theirs},
        {"": "redis.asyncio", "pairs/s": theirs, "times redis.asyncio": 1.0},
    ]


# -- many leases ----------------------------------------------------------------------------------------


def many_leases(server: RedisServer, count: int, seconds: float) -> dict[str, object]:
    """So many leases on one client, kept for so long."""
    client = lockline.connect(server.url)
    leases = [client.lock(f"held-{n}", ttl=10).acquire() for n in range(count)]
    time.sleep(1)
    before = resource.getrusage(resource.RUSAGE_SELF)
    server_before = cpu(server)
    began = time.perf_counter()
    time.sleep(seconds)
    took = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    lost = sum(not lease.valid for lease in leases)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result: dict[str, object] = {
        "leases": count,
        "seconds": took,
        "lost": lost,
        "keeper, share of a core": used / took,
        "server, share of a core": (cpu(server) - server_before) / took,
        "connections": server.command("INFO", "clients")["connected_clients"] - 1,
    }
    for lease in leases:
        lease.release()
    client.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="*", default=[16, 64])
    parser.add_argument("--held", type=int, default=10_000)
    parser.add_argument("--hold", type=float, default=120.0)
    parser.add_argument("--only", nargs="*", default=["alone", "crowd", "asyncio", "held"])
    asked = parser.parse_args()
    packages = ("lockline", "redis", "hiredis", "python-redis-lock", "pottery")
    report = Report("redis_locks", {name: importlib.metadata.version(name) for name in packages})
    with a_redis() as server:
        if "crowd" in asked.only:
            for processes in asked.processes:
                for holds in (False, True) if processes <= 16 else (True,):
                    rows = [contended(server, peer, processes, asked.seconds, holds) for peer in PEERS]
                    report.table(f"{processes} processes, {'1 ms' if holds else 'empty'} critical section", rows)
        if "alone" in asked.only:
            report.table("uncontended acquire and release, blocking", uncontended(server, asked.rounds))
        if "asyncio" in asked.only:
            report.table("asyncio, 100 tasks on 100 locks", asyncio.run(many_tasks(server, asked.seconds)))
        if "held" in asked.only and asked.held:
            report.table("held leases", [many_leases(server, asked.held, asked.hold)])
    report.write()


if __name__ == "__main__":
    main()
