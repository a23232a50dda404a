"""What one acquire and release, and one visit at a fence, costs the client in instructions, beside another version.

    python bench/instructions.py --baseline …/src [--only memory redis]

Counted by valgrind's callgrind (Debian: `apt-get install valgrind`), not timed: a few per cent can be seen where seconds differ by ten.
What has threads beside it, or looks for an answer before it sleeps, still differs: by some per cent on redis, by a fifth on redlock. Repeat those. The servers are real, and their own work is not counted;
a wait in the kernel counts for nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from report import Report, Row

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

FEW, MANY = 100, 600
"""Rounds of the two runs whose difference is divided by the difference of these: what a program takes to begin falls out."""

BLOCKING = """
import sys, lockline
with lockline.connect(sys.argv[1]) as client:
    lock = client.lock("bench")
    for _ in range(int(sys.argv[2])):
        with lock:
            pass
"""
ASYNCIO = """
import asyncio, sys, lockline.aio
async def main():
    async with lockline.aio.connect(sys.argv[1]) as client:
        lock = client.lock("bench")
        for _ in range(int(sys.argv[2])):
            async with lock:
                pass
asyncio.run(main())
"""
SQL_FENCE = """
import secrets, sys, lockline
from lockline.fence import SqlFence
if sys.argv[1].startswith("postgresql"):
    import psycopg
    connection = psycopg.connect(sys.argv[1])
else:
    import sqlite3
    connection = sqlite3.connect(sys.argv[1])
fence = SqlFence()
fence.create(connection)
connection.commit()
with lockline.connect("memory:") as client:
    with client.lock("bench") as lease:
        resource = secrets.token_hex(4)  # tokens of memory: begin anew in each run
        for _ in range(int(sys.argv[2])):
            fence.enter(connection, resource, lease)
            connection.commit()
connection.close()
"""
REDIS_FENCE = """
import secrets, sys, redis, lockline
from lockline.fence import RedisFence
plain = redis.Redis.from_url(sys.argv[1])
fence = RedisFence(plain)
with lockline.connect("memory:") as client:
    with client.lock("bench") as lease:
        resource = secrets.token_hex(4)
        for _ in range(int(sys.argv[2])):
            fence.set(resource, lease, "paid")
"""


def instructions(source: Path, program: str, place: str, rounds: int) -> int:
    """How many one whole run takes."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONHASHSEED": "0"}
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-c", program]
    run = subprocess.run([*command, place, str(rounds)], env=environment, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode or not found:
        raise SystemExit(run.stderr[-1500:])
    return int(found[1])


def a_round(source: Path, program: str, place: str) -> float:
    """How many one more round takes."""
    return (instructions(source, program, place, MANY) - instructions(source, program, place, FEW)) / (MANY - FEW)


@contextlib.contextmanager
def places(only: list[str]) -> Iterator[dict[str, tuple[str, str]]]:
    """What is measured: a program, and where."""
    from tests.servers.etcd import EtcdCluster
    from tests.servers.postgres import PostgresServer
    from tests.servers.redis import a_redis
    from tests.servers.zookeeper import ZooKeeper

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        found: dict[str, tuple[str, str]] = {}
        if "memory" in only:
            found["memory"] = (BLOCKING, "memory:")
            found["memory, asyncio"] = (ASYNCIO, "memory:")
        if "local" in only:
            found["local"] = (BLOCKING, f"local://{folder}/lines.db")
        if "redis" in only:
            url = stack.enter_context(a_redis()).url
            found["redis"], found["redis, asyncio"] = (BLOCKING, url), (ASYNCIO, url)
        if "redlock" in only:
            servers = [stack.enter_context(a_redis()) for _ in range(5)]
            url = "redlock://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
            run = subprocess.run(
                [sys.executable, "-m", "lockline.cli", "redlock", "init", url], capture_output=True, text=True
            )
            assert run.returncode == 0, run.stderr
            found["redlock of five"], found["redlock, asyncio"] = (BLOCKING, url), (ASYNCIO, url)
        if "etcd" in only:
            cluster = EtcdCluster(Path(folder, "etcd"), 1).start()
            stack.callback(cluster.stop)
            url = cluster.url
            found["etcd"], found["etcd, asyncio"] = (BLOCKING, url), (ASYNCIO, url)
        if "zookeeper" in only:
            server = ZooKeeper(Path(folder, "zookeeper"))
            server.start()
            stack.callback(server.stop)
            found["zookeeper"] = (BLOCKING, server.url)
        if "fence" in only:
            found["fence: sqlite"] = (SQL_FENCE, f"{folder}/fence.db")
            found["fence: redis"] = (REDIS_FENCE, stack.enter_context(a_redis()).url)
            database = PostgresServer()
            stack.callback(database.remove)
            database.start()
            found["fence: postgresql"] = (SQL_FENCE, database.url)
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--baseline", type=Path, help="the src folder of another version, to be counted side by side")
    parser.add_argument(
        "--only", nargs="*", default=["memory", "local", "redis", "redlock", "etcd", "zookeeper", "fence"]
    )
    asked = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("left out, because valgrind is missing: apt-get install valgrind")
        return
    rows: list[Row] = []
    with places(asked.only) as found:
        for what, (program, place) in found.items():
            now = a_round(ROOT / "src", program, place)
            row: dict[str, object] = {"": what, "instructions a round": now}
            if asked.baseline:
                before = a_round(asked.baseline, program, place)
                row |= {"before": before, "now / before": now / before}
            rows.append(row)
            print(what, *(f"{value:,.3f}" for value in row.values() if isinstance(value, float)), flush=True)
    report = Report("instructions", {})
    report.table("instructions of the client", rows)
    report.write()


if __name__ == "__main__":
    main()
