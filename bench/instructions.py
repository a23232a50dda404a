"""What one acquire and release, and one visit at a fence, costs the client in instructions, beside another version.

    python bench/instructions.py --baseline …/src [--only memory redis] [--times 7]

Counted by valgrind's callgrind (Debian: `apt-get install valgrind`), not timed: a few per cent can be seen where seconds differ by ten.
Only the rounds themselves are counted, after some that are not: what a program takes to begin differs by more than what is looked for.
Each row is counted several times, both versions in turn; compared are the least and the median. The servers are real, and their own work
is not counted; a wait in the kernel counts for nothing.

What looks for an answer before it sleeps still differs, by some per cent: redis. A blocking Redlock client would differ by five per cent,
and by more on a busy machine, so it is counted on a fixed schedule, the same for both versions:

- All five answers lie ready before they are looked for. Else it is chance whether one wake-up brings one of them or all, and each costs.
- The clock stands still, and only the calling thread is counted. Once a second each server is asked for its settings, and four times a
  second a thread looks after what is left over: next to nothing beside thousands of rounds, but under valgrind a second has a few dozens,
  or on a busy machine a few.

Each answer for itself, in a wake-up of its own, is `--schedule singly`; `--schedule chance` leaves all that as it comes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from report import Report, Row

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

WARM_UP, ROUNDS = 50, 300

COUNTED = f"""
import os, subprocess, sys, time
def switch(counting):
    # Not waited for in one go: valgrind listens only while the program runs.
    asked = subprocess.Popen(["vgdb", f"--pid={{os.getpid()}}", "instrumentation", counting], stdout=-3, stderr=-3)
    while asked.poll() is None:
        time.sleep(0.001)
def rounds():
    yield from range({WARM_UP})
    switch("on")
    yield from range({ROUNDS})
    switch("off")
"""
"""Before every program: what goes round in `rounds()` is counted, after some rounds that are not."""

STILL = """
import select, time
time.clock_gettime = dict.fromkeys(range(16), time.monotonic()).__getitem__
class Poll:
    def __init__(self):
        self._poll = plain_poll()
        self.register, self.unregister = self._poll.register, self._poll.unregister
    def poll(self, timeout):
        time.sleep(0.003)
        return self._poll.poll(timeout)MOST
plain_poll, select.poll = select.poll, Poll
"""
SCHEDULES = {
    "together": STILL.replace("MOST", ""),
    "singly": STILL.replace("MOST", "[: 1 if timeout else None]"),
    "chance": "",
}
"""Before the program of a blocking Redlock client: the clock stands still, and answers have time to come before they are looked for."""

BLOCKING = """
import sys, lockline
with lockline.connect(sys.argv[1]) as client:
    lock = client.lock("bench")
    for _ in rounds():
        with lock:
            pass
"""
ASYNCIO = """
import asyncio, sys, lockline.aio
async def main():
    async with lockline.aio.connect(sys.argv[1]) as client:
        lock = client.lock("bench")
        for _ in rounds():
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
        for _ in rounds():
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
        for _ in rounds():
            fence.set(resource, lease, "paid")
"""


def a_round(source: Path, program: str, place: str, *, alone: bool = False) -> float:
    """How many one round takes; `alone`: in the calling thread, not counting others beside it."""
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as folder:
        callgrind = ["--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"]
        command = ["valgrind", *callgrind, f"--callgrind-out-file={folder}/thread", sys.executable, "-c"]
        run = subprocess.run([*command, COUNTED + program, place], env=environment, capture_output=True, text=True)
        threads = sorted(Path(folder).glob("thread-*"))
        totals = [re.findall(r"^totals: (\d+)", thread.read_text(), re.MULTILINE) for thread in threads]
    counts = [sum(map(int, total)) for total in totals]
    if run.returncode or not any(counts):
        raise SystemExit(run.stderr[-1500:])
    return (counts[0] if alone else sum(counts)) / ROUNDS


@contextlib.contextmanager
def places(only: list[str], schedule: str) -> Iterator[dict[str, tuple[str, str]]]:
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
            found["redlock of five"], found["redlock, asyncio"] = (SCHEDULES[schedule] + BLOCKING, url), (ASYNCIO, url)
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
    parser.add_argument("--times", type=int, default=3, help="how often each is counted, both versions in turn")
    parser.add_argument(
        "--schedule", choices=SCHEDULES, default="together", help="of a blocking Redlock client's answers"
    )
    asked = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("left out, because valgrind is missing: apt-get install valgrind")
        return
    rows: list[Row] = []
    with places(asked.only, asked.schedule) as found:
        for what, (program, place) in found.items():
            alone = what == "redlock of five" and asked.schedule != "chance"
            now, before = [], []
            for _ in range(asked.times):
                now.append(a_round(ROOT / "src", program, place, alone=alone))
                if asked.baseline:
                    before.append(a_round(asked.baseline, program, place, alone=alone))
            row: dict[str, object] = {"": what, "least": min(now), "median": statistics.median(now)}
            if before:
                least, median = min(before), statistics.median(before)
                row |= {"least before": least, "median before": median}
                row |= {"now / before, least": min(now) / least, "median ": statistics.median(now) / median}
            rows.append(row)
            print(what, *(f"{value:,.3f}" for value in row.values() if isinstance(value, float)), flush=True)
    report = Report("instructions", {})
    report.table("instructions of the client", rows)
    report.write()


if __name__ == "__main__":
    main()
