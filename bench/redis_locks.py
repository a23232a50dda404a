"""`redis://` against redis-py's Lock, python-redis-lock and pottery, and against the limits of `redis_limits`.

One server over loopback, everything in one run:

python bench/redis_locks.py [--seconds 3] [--rounds 5] [--processes 16 64] [--held 10000 --hold 120]
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import redis
import redis.asyncio
from crowd import Locker, Opener, contended, uncontended
from redis_limits import fenced_locker, hand_over_locker
from report import Report

import lockline
from tests.servers.redis import RedisServer, a_redis

# -- one way to take and give back a lock, each -----------------------------------------------------


@contextmanager
def lockline_locker(port: str) -> Iterator[Locker]:
    with lockline.connect(f"redis://127.0.0.1:{port}") as client:
        lock = client.lock("bench")
        yield lambda: lock


@contextmanager
def redis_py_locker(port: str, sleep: float = 0.1) -> Iterator[Locker]:
    lock = redis.Redis(port=int(port)).lock("redis-py", timeout=10, sleep=sleep)
    yield lambda: lock


def redis_py_eager_locker(port: str) -> AbstractContextManager[Locker]:
    return redis_py_locker(port, sleep=0.001)


@contextmanager
def python_redis_lock_locker(port: str) -> Iterator[Locker]:
    import redis_lock

    client = redis.Redis(port=int(port))
    # A new object each time: this one cannot be taken twice.
    yield lambda: redis_lock.Lock(client, "python-redis-lock", expire=10)


@contextmanager
def pottery_locker(port: str) -> Iterator[Locker]:
    import pottery

    lock = pottery.Redlock(key="pottery", masters={redis.Redis(port=int(port))}, auto_release_time=10)
    yield lambda: lock


PEERS: dict[str, Opener] = {
    "lockline": lockline_locker,
    "redis-py": redis_py_locker,
    "redis-py, sleep 1 ms": redis_py_eager_locker,
    "python-redis-lock": python_redis_lock_locker,
    "pottery": pottery_locker,
}
SHARED = ("lockline", "redis-py", "redis-py, sleep 1 ms", "python-redis-lock")
"""Those whose client, or lock, may be used by several threads at once."""
LEAST = "limit: two trivial scripts on a bare socket"
HAND_OVER = "limit: BLPOP on bare sockets"


def alone(server: RedisServer, rounds: int) -> list[dict[str, object]]:
    """One thread and a lock that nobody else wants."""
    with ExitStack() as stack:
        openers = {LEAST: fenced_locker, **{peer: opener for peer, opener in PEERS.items() if "sleep" not in peer}}
        lockers = {peer: stack.enter_context(opener(str(server.port))) for peer, opener in openers.items()}
        times = uncontended(lockers, rounds, 2000)
    return [
        {
            "": peer,
            "µs per pair": took * 1e6,
            "of the limit": took / times[LEAST],
            "times redis-py's speed": times["redis-py"] / took,
        }
        for peer, took in times.items()
    ]


def in_a_crowd(
    server: RedisServer, processes: int, seconds: float, hold: float, rounds: int
) -> list[dict[str, object]]:
    """So many processes on one lock for so long; the best round of each peer, and they take turns."""

    def counted() -> dict[str, float]:
        return {"server_us": cpu(server) * 1e6, "requests": requests(server)}

    best: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        for peer, opener in {HAND_OVER: hand_over_locker, **PEERS}.items():
            server.command("FLUSHALL")
            run = contended(opener, str(server.port), processes, hold, seconds, method="fork", counted=counted)
            if peer not in best or run["grants_per_s"] > best[peer]["grants_per_s"]:
                best[peer] = run
    return [{"": peer, **run} for peer, run in best.items()]


# -- the server's time ------------------------------------------------------------------------------------


def server_time(server: RedisServer, rounds: int, count: int = 1000, few: int = 400) -> list[dict[str, object]]:
    """What the server spends on one acquire and release: on a free lock, of 8 clients on one, and of 8 threads of one client.

    The best round of each.
    """
    free: dict[str, tuple[float, float]] = {}
    crowd: dict[str, tuple[float, float]] = {}
    family: dict[str, tuple[float, float]] = {}
    for _ in range(rounds):
        for peer, opener in {LEAST: fenced_locker, HAND_OVER: hand_over_locker, **PEERS}.items():
            server.command("FLUSHALL")
            if "sleep" not in peer and peer != HAND_OVER:
                with opener(str(server.port)) as locker:
                    spent = _server_time(server, count, partial(_take_turns, locker, count))
                free[peer] = min(free.get(peer, spent), spent)
            if peer != LEAST:
                with ExitStack() as stack:
                    lockers = [stack.enter_context(opener(str(server.port))) for _ in range(8)]
                    spent = _server_time(server, few, partial(_in_threads, lockers, few))
                crowd[peer] = min(crowd.get(peer, spent), spent)
            if peer in SHARED:
                with opener(str(server.port)) as locker:
                    spent = _server_time(server, few, partial(_in_threads, [locker] * 8, few))
                family[peer] = min(family.get(peer, spent), spent)
    nothing = (float("nan"),) * 2
    rows: list[dict[str, object]] = []
    for peer in dict.fromkeys((*free, *crowd)):
        alone, together, inside = (each.get(peer, nothing) for each in (free, crowd, family))
        rows.append(
            {
                "": peer,
                "free: µs in commands": alone[0],
                "times redis-py's": alone[0] / free["redis-py"][0],
                "free: µs of CPU": alone[1],
                "8 clients: µs in commands": together[0],
                "times redis-py's ": together[0] / crowd["redis-py"][0],
                "8 clients: µs of CPU": together[1],
                "8 threads of one client: µs in commands": inside[0],
                "times redis-py's  ": inside[0] / family["redis-py"][0],
                "8 threads of one client: µs of CPU": inside[1],
            }
        )
    return rows


def _take_turns(locker: Locker, count: int) -> None:
    for _ in range(count):
        with locker():
            pass


def _in_threads(lockers: list[Locker], count: int) -> None:
    threads = [threading.Thread(target=_take_turns, args=(locker, count // len(lockers))) for locker in lockers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _server_time(server: RedisServer, count: int, work: Callable[[], None]) -> tuple[float, float]:
    """Microseconds a pair inside commands, and of the server's whole CPU."""
    work()
    server.command("CONFIG", "RESETSTAT")
    before = cpu(server)
    work()
    spent = (cpu(server) - before) * 1e6 / count
    stats = server.command("INFO", "commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("usec", 0) for name in TOP_LEVEL) / count, spent


def cpu(server: RedisServer) -> float:
    """Seconds of CPU that the server has used."""
    info = server.command("INFO", "cpu")
    return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])


TOP_LEVEL = ("evalsha", "eval", "set", "blpop", "rpush")
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
    parser.add_argument("--only", nargs="*", default=["server", "alone", "crowd", "asyncio", "held"])
    asked = parser.parse_args()
    packages = ("lockline", "redis", "hiredis", "python-redis-lock", "pottery")
    report = Report("redis_locks", {name: importlib.metadata.version(name) for name in packages})
    with a_redis() as server:
        if "server" in asked.only:
            report.table("the server's time for one acquire and release", server_time(server, asked.rounds))
        if "crowd" in asked.only:
            for processes in asked.processes:
                for hold in (0.0, 0.001) if processes <= 16 else (0.001,):
                    rows = in_a_crowd(server, processes, asked.seconds, hold, asked.rounds)
                    report.table(f"{processes} processes, {'1 ms' if hold else 'empty'} critical section", rows)
        if "alone" in asked.only:
            report.table("uncontended acquire and release, blocking", alone(server, asked.rounds))
        if "asyncio" in asked.only:
            report.table("asyncio, 100 tasks on 100 locks", asyncio.run(many_tasks(server, asked.seconds)))
        if "held" in asked.only and asked.held:
            report.table("held leases", [many_leases(server, asked.held, asked.hold)])
    report.write()


if __name__ == "__main__":
    main()
