"""Every store through a slow line: leases that are renewed beside callers with little time. No lease may be lost.

python bench/slow_stores.py [--seconds 300] [--answers-after 0.3 0.7] [--stores redis etcd ...]
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from report import Report

import lockline
from tests.contract.worlds import World, all_worlds
from tests.servers.proxy import Proxy

STORES = ["redis", "redlock-3", "postgresql", "postgresql-pgbouncer", "mysql", "zookeeper", "etcd", "consul"]
FLAVOURS = ["sync", "asyncio"]
LEASES, CALLERS, TTL_S = 20, 40, 10.0
TIMEOUTS_S = (0.02, 0.1, 0.5, 1.0)
PAUSE_S = 0.1
"""Between two calls of one impatient caller: the line is slow here, not the machine."""


class Tally:
    """What became of the leases and of the callers."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.calls: collections.Counter[str] = collections.Counter()
        self.until = 0.0

    def row(self) -> dict[str, object]:
        return {"lost": len(self.lost), "why": "; ".join(sorted(set(self.lost)))[:90], **dict(self.calls.most_common())}


def a_name(number: int, chance: random.Random) -> str:
    """A name that is held, or one that is free, mostly."""
    return f"held{chance.randrange(LEASES)}" if number % 2 else f"free{number}"


def blocking(url: str, seconds: float) -> Tally:
    tally = Tally()
    with lockline.connect(url) as client:
        leases = [client.lock(f"held{n}", ttl=TTL_S).acquire(timeout=120) for n in range(LEASES)]
        tally.until = time.monotonic() + seconds

        def call(number: int) -> None:
            chance = random.Random(number)
            while time.monotonic() < tally.until:
                try:
                    client.lock(a_name(number, chance)).acquire(timeout=chance.choice(TIMEOUTS_S)).release()
                    tally.calls["granted"] += 1
                except lockline.LocklineError as error:
                    tally.calls[type(error).__name__] += 1
                time.sleep(PAUSE_S)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for lease in leases:
            try:
                lease.check()
            except lockline.LocklineError as error:
                tally.lost.append(str(error))
    return tally


async def in_asyncio(url: str, seconds: float) -> Tally:
    tally = Tally()
    async with lockline.aio.connect(url) as client:
        leases = [await client.lock(f"held{n}", ttl=TTL_S).acquire(timeout=120) for n in range(LEASES)]
        tally.until = time.monotonic() + seconds

        async def call(number: int) -> None:
            chance = random.Random(number)
            while time.monotonic() < tally.until:
                try:
                    lock = client.lock(a_name(number, chance))
                    await (await lock.acquire(timeout=chance.choice(TIMEOUTS_S))).release()
                    tally.calls["granted"] += 1
                except lockline.LocklineError as error:
                    tally.calls[type(error).__name__] += 1
                await asyncio.sleep(PAUSE_S)

        await asyncio.gather(*(call(number) for number in range(CALLERS)))
        for lease in leases:
            try:
                lease.check()
            except lockline.LocklineError as error:
                tally.lost.append(str(error))
    return tally


def through_proxies(url: str, delay: float) -> tuple[str, list[Proxy]]:
    """The same URL by way of proxies that hold everything back for half of that, each way."""
    proxies: list[Proxy] = []

    def instead(found: re.Match[str]) -> str:
        proxies.append(Proxy(("127.0.0.1", int(found[1]))))
        proxies[-1].delay(delay / 2)
        return f"127.0.0.1:{proxies[-1].port}"

    return re.sub(r"127\.0\.0\.1:(\d+)", instead, url), proxies


def measure(world: World, seconds: float, delay: float) -> list[dict[str, object]]:
    """Both flavours side by side, each in a process of its own."""
    runs = []
    for flavour in FLAVOURS:
        url, proxies = through_proxies(world.place(), delay)
        command = [sys.executable, __file__, "--one", flavour, url, "--seconds", str(seconds)]
        runs.append((flavour, proxies, subprocess.Popen(command, stdout=subprocess.PIPE, text=True)))
    rows = []
    for flavour, proxies, process in runs:
        said, _ = process.communicate()
        row = json.loads(said) if process.returncode == 0 else {"lost": "failed"}
        rows.append({"store": world.name, "flavour": flavour, "answers after": delay, **row})
        for proxy in proxies:
            proxy.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--answers-after", type=float, nargs="+", default=[0.3, 0.7])
    parser.add_argument("--stores", nargs="+", default=STORES)
    parser.add_argument("--one", nargs=2)
    asked = parser.parse_args()
    if asked.one:
        flavour, url = asked.one
        tally = blocking(url, asked.seconds) if flavour == "sync" else asyncio.run(in_asyncio(url, asked.seconds))
        print(json.dumps(tally.row()))
        return
    rows: list[dict[str, object]] = []
    worlds = all_worlds()
    for name in asked.stores:
        with tempfile.TemporaryDirectory() as folder:
            world = worlds[name](Path(folder))
            world.open()
            try:
                with ThreadPoolExecutor() as pool:
                    for measured in pool.map(partial(measure, world, asked.seconds), asked.answers_after):
                        rows += measured
            finally:
                world.close()
    report = Report("slow_stores", {})
    report.table(f"{LEASES} leases of {TTL_S:g} s beside {CALLERS} impatient callers, {asked.seconds:g} s", rows)
    report.write()
    sys.exit(any(row["lost"] != 0 for row in rows))


if __name__ == "__main__":
    main()
