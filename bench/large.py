"""How `redis://` grows: held leases of one client, names, waiters on one name, processes, what close() gives back, what list() asks.

python bench/large.py [--scale 0.1] [--seconds 12] [--ttl 30] [--only held names list waiters processes] [--draw]

At scale 1: 100,000 held leases, 1,000,000 names, 10,000 waiters in 50 processes, 500 processes. With --draw the curves go into docs/images, beside
those of the tables that were measured there before.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import logging
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from crowd import contended
from plot import draw
from redis_locks import cpu, lockline_locker
from report import Report

import lockline
from tests.servers.redis import RedisServer, a_redis

Row = dict[str, float]
TTL = 30.0
AT_ONCE = 500
HERE = Path(__file__).parent
PICTURE = HERE.parent / "docs" / "images" / "large.svg"


def steps(most: float, count: int = 3) -> list[int]:
    """Up to the most, each about three times the one before."""
    return sorted({max(1, int(most / 10 ** (number / 2))) for number in range(count)})


def memory() -> float:
    """Kilobytes that this process has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024


def calls(server: RedisServer, command: str) -> float:
    stats = server.command("INFO", "commandstats")
    return float(stats.get(f"cmdstat_{command}", {}).get("calls", 0))


def used(server: RedisServer) -> float:
    return float(server.command("INFO", "memory")["used_memory"]) / 1024


async def in_portions(many: int, work: Callable[[int], Any]) -> list[Any]:
    done: list[Any] = []
    for at in range(0, many, AT_ONCE):
        done += await asyncio.gather(*(work(number) for number in range(at, min(many, at + AT_ONCE))))
    return done


# -- one client ---------------------------------------------------------------------------------------


async def held(server: RedisServer, many: int, seconds: float, ttl: float) -> Row:
    """So many leases in one client, kept by it: what that costs per second, in memory, and what close() takes."""
    server.command("FLUSHALL")
    before, stored = memory(), used(server)
    client = lockline.aio.connect(server.url)
    leases = await in_portions(many, lambda number: client.lock(f"held-{number}", ttl=ttl).acquire())
    await asyncio.sleep(1)
    server.command("CONFIG", "RESETSTAT")
    spent, served, began = time.process_time(), cpu(server), time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    row: Row = {
        "leases": many,
        "lost": sum(not lease.valid for lease in leases),
        "client: share of a core": (time.process_time() - spent) / took,
        "server: share of a core": (cpu(server) - served) / took,
        "renewal requests/s": calls(server, "evalsha") / took,
        "leases renewed/s": calls(server, "pexpireat") / took,
        "client: KB a lease": (memory() - before) / many,
        "server: KB a lease": (used(server) - stored) / many,
        "connections": float(server.command("INFO", "clients")["connected_clients"]) - 1,
    }
    server.command("CONFIG", "RESETSTAT")
    spent, began = time.process_time(), time.perf_counter()
    await client.close()
    row["close(): seconds"] = time.perf_counter() - began
    row["close(): CPU seconds"] = time.process_time() - spent
    left = (
        [key for key in server.command("KEYS", "*") if "state" in server.command("HKEYS", key)] if many < 2000 else []
    )
    row["close(): not given back"] = many - calls(server, "hdel") if not left else len(left)
    return row


async def names(server: RedisServer, many: int) -> Row:
    """So many names, each taken and given back once: what stays in the client and in the server."""
    server.command("FLUSHALL")
    stored = used(server)

    async def one(client: lockline.aio.Client, number: int) -> None:
        async with client.lock(f"name-{number}"):
            pass

    async with lockline.aio.connect(server.url) as client:
        await in_portions(1000, lambda number: one(client, -1 - number))
        before, served, spent, began = memory(), cpu(server), time.process_time(), time.perf_counter()
        await in_portions(many, lambda number: one(client, number))
        took = time.perf_counter() - began
        return {
            "names": many,
            "names/s": many / took,
            "client: CPU µs a name": (time.process_time() - spent) / many * 1e6,
            "server: CPU µs a name": (cpu(server) - served) / many * 1e6,
            "client: MB more": (memory() - before) / 1024,
            "server: MB more": (used(server) - stored) / 1024,
        }


async def listed(server: RedisServer, many: int) -> Row:
    """So many names that are held: what list() asks for, and how long it takes."""
    server.command("FLUSHALL")
    async with lockline.aio.connect(server.url) as client:
        await in_portions(many, lambda number: client.lock(f"listed-{number}", ttl=TTL).acquire())
        server.command("CONFIG", "RESETSTAT")
        served, spent, began = cpu(server), time.process_time(), time.perf_counter()
        found = await client.list()
        assert len(found) == many
        return {
            "names": many,
            "seconds": time.perf_counter() - began,
            "client: CPU µs a name": (time.process_time() - spent) / many * 1e6,
            "pages": calls(server, "scan"),
            "server: CPU µs a name": (cpu(server) - served) / many * 1e6,
        }


# -- many processes -------------------------------------------------------------------------------------


async def wait_in_line(port: int, many: int, pipe: Any) -> None:
    """So many tasks that want one name, and give it back at once."""

    async with lockline.aio.connect(f"redis://127.0.0.1:{port}") as client:

        async def one() -> None:
            async with client.lock("line", ttl=TTL):
                pass

        await asyncio.gather(*(one() for _ in range(many)))
    pipe.send("done")


def stand(port: int, many: int, pipe: Any) -> None:
    asyncio.run(wait_in_line(port, many, pipe))


def waiters(server: RedisServer, many: int, processes: int) -> Row:
    """So many who wait for one name that is held, in so many processes; then it goes through all of them."""
    server.command("FLUSHALL")
    processes = min(processes, many)
    stored = used(server)
    with lockline.connect(server.url) as client:
        lease = client.lock("line", ttl=TTL).acquire()
        context = multiprocessing.get_context("fork")
        pipes, children = [], []
        for number in range(processes):
            ours, theirs = context.Pipe()
            share = many // processes + (number < many % processes)
            child = context.Process(target=stand, args=(server.port, share, theirs), daemon=True)
            child.start()
            pipes.append(ours)
            children.append(child)
        began = time.monotonic()
        key = "{ll:line}"
        while server.command("HLEN", key) < 2 * many + 3 and time.monotonic() < began + 240:
            time.sleep(0.1)
        stood = time.monotonic() - began
        waiting = used(server) - stored
        spent, served = time.monotonic(), cpu(server)
        server.command("CONFIG", "RESETSTAT")
        lease.release()
        for pipe in pipes:
            assert pipe.recv() == "done"
        took = time.monotonic() - spent
        stats = server.command("INFO", "commandstats")["cmdstat_evalsha"]
        row: Row = {
            "waiters": many,
            "processes": processes,
            "seconds to stand": stood,
            "grants/s": many / took,
            "server: CPU µs a grant": (cpu(server) - served) / many * 1e6,
            "server: µs in scripts a grant": float(stats["usec"]) / many,
            "server: KB a waiter": waiting / many,
        }
        for child in children:
            child.join()
    return row


def crowd(server: RedisServer, processes: int, seconds: float) -> Row:
    """So many processes on one name, nothing inside."""
    server.command("FLUSHALL")
    run = contended(
        lockline_locker, str(server.port), processes, 0.0, seconds, method="fork",
        counted=lambda: {"server_us": cpu(server) * 1e6},
    )  # fmt: skip
    return {
        "processes": processes,
        "grants/s": run["grants_per_s"],
        "jain": run.get("jain", 0.0),
        "client: CPU µs a grant": run.get("cpu_ms", 0.0) * 1e3,
        "server: CPU µs a grant": run.get("server_us_per_grant", 0.0),
    }


# -- all --------------------------------------------------------------------------------------------------

CURVES: Mapping[str, tuple[str, Sequence[str]]] = {
    "held": (
        "leases",
        ("client: share of a core", "server: share of a core", "client: KB a lease", "close(): seconds"),
    ),
    "names": ("names", ("client: CPU µs a name", "server: CPU µs a name", "client: MB more")),
    "list": ("names", ("seconds", "server: CPU µs a name")),
    "waiters": ("waiters", ("server: µs in scripts a grant", "server: KB a waiter")),
    "processes": ("processes", ("server: CPU µs a grant", "client: CPU µs a grant")),
}


def measured(server: RedisServer, asked: argparse.Namespace) -> Iterator[tuple[str, Row]]:
    """Row by row: whoever ends it keeps what there is."""
    scale, seconds, only = asked.scale, asked.seconds, asked.only
    if "held" in only:
        yield from (("held", asyncio.run(held(server, many, seconds, asked.ttl))) for many in steps(100_000 * scale))
    if "names" in only:
        yield from (("names", asyncio.run(names(server, many))) for many in steps(1_000_000 * scale))
    if "list" in only:
        yield from (("list", asyncio.run(listed(server, many))) for many in steps(100_000 * scale))
    if "waiters" in only:
        yield from (("waiters", waiters(server, many, int(50 * scale) or 5)) for many in steps(10_000 * scale))
    if "processes" in only:
        yield from (("processes", crowd(server, many, seconds)) for many in steps(500 * scale))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument(
        "--ttl", type=float, default=TTL, help="of what is held; --seconds should be a third of it at least"
    )
    parser.add_argument("--only", nargs="*", default=list(CURVES))
    parser.add_argument("--draw", action="store_true", help="write the curves into docs/images")
    asked = parser.parse_args()
    # How many were lost is in the table; a line for each that was late, of 100,000, would be measured as well.
    logging.getLogger("lockline").setLevel(logging.ERROR)
    report = Report("large", {name: importlib.metadata.version(name) for name in ("lockline", "redis")})
    tables: dict[str, list[Row]] = {}
    with a_redis() as server:
        for what, row in measured(server, asked):
            tables.setdefault(what, []).append(row)
            report.table(what, tables[what])
            if asked.draw:
                picture(tables)
    report.write()


def picture(tables: Mapping[str, list[Row]]) -> None:
    """Draw them, and what was drawn before and not measured now."""
    file = PICTURE.with_suffix(".json")
    known: dict[str, list[Row]] = json.loads(file.read_text()) if file.exists() else {}
    known.update(tables)
    panels = []
    for what, (across, curves) in CURVES.items():
        rows = known.get(what, [])
        panels += [
            (f"{what}: {each}", across, [(row[across], row[each]) for row in rows if each in row]) for each in curves
        ]
    draw(PICTURE, [panel for panel in panels if panel[2]])
    file.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
