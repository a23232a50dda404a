"""ZooKeeper: Lockline against kazoo's Lock and the bare create + delete of an ephemeral node, in one run.

python bench/zookeeper.py [--seconds 4] [--rounds 5] [--processes 16] [--ensemble]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from report import Report, jain, percentile

from tests.servers.zookeeper import Ensemble, ZooKeeper, facts

Locker = Callable[[], AbstractContextManager[Any]]


@contextmanager
def lockline_locker(hosts: str) -> Iterator[Locker]:
    import lockline

    with lockline.connect(f"zk://{hosts}") as client:
        lock = client.lock("bench")
        yield lambda: lock


@contextmanager
def kazoo_client(hosts: str) -> Iterator[Any]:
    from kazoo.client import KazooClient

    client = KazooClient(hosts=hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@contextmanager
def kazoo_locker(hosts: str) -> Iterator[Locker]:
    with kazoo_client(hosts) as client:
        # A new object each time, as its users write it.
        yield lambda: client.Lock("/kazoo/bench", "bench")


@contextmanager
def bare_locker(hosts: str) -> Iterator[Locker]:
    """Not a lock: one ephemeral node made and removed, the least that any lock on ZooKeeper must do."""
    with kazoo_client(hosts) as client:
        client.ensure_path("/bare")

        @contextmanager
        def made() -> Iterator[None]:
            path = client.create("/bare/node-", b"", ephemeral=True, sequence=True)
            yield
            client.delete(path)

        yield made


PEERS = {"lockline": lockline_locker, "kazoo Lock": kazoo_locker}
LIMIT = "bare create+delete"


def uncontended(lockers: dict[str, Locker], rounds: int, count: int) -> dict[str, float]:
    """Seconds for one acquire and release, the best round of each; they take turns, so that all meet the same machine."""
    best = dict.fromkeys(lockers, float("inf"))
    for _ in range(rounds):
        for peer, locker in lockers.items():
            began = time.perf_counter()
            for _ in range(count):
                with locker():
                    pass
            best[peer] = min(best[peer], (time.perf_counter() - began) / count)
    return best


def worker(peer: str, hosts: str, hold: float, seconds: float, pipe: Connection) -> None:
    """Take the lock again and again; report each wait and the time spent inside."""
    with PEERS[peer](hosts) as locker:
        with locker():
            pass
        pipe.send("ready")
        start = pipe.recv()
        while time.monotonic() < start:
            time.sleep(0.0005)
        waits: list[float] = []
        inside = 0.0
        spent = time.process_time()
        end = start + seconds
        while (asked := time.monotonic()) < end:
            with locker():
                got = time.monotonic()
                time.sleep(hold)
                inside += time.monotonic() - got
            waits.append(got - asked)
        pipe.send((waits, inside, time.monotonic() - start, time.process_time() - spent))


def contended(peer: str, hosts: str, ports: list[int], processes: int, hold: float, seconds: float) -> dict[str, float]:
    """Grants per second, fairness, waits, and what it cost the servers."""
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for _ in range(processes):
        ours, theirs = context.Pipe()
        child = context.Process(target=worker, args=(peer, hosts, hold, seconds, theirs))
        child.start()
        pipes.append(ours)
        children.append(child)
    for pipe in pipes:
        pipe.recv()
    before = counted(ports)
    start = time.monotonic() + 0.2
    for pipe in pipes:
        pipe.send(start)
    reports = [pipe.recv() for pipe in pipes]
    after = counted(ports)
    for child in children:
        child.join()
    waits = sorted(wait for report in reports for wait in report[0])
    grants = len(waits)
    elapsed = max(report[2] for report in reports)
    inside = sum(report[1] for report in reports) / grants
    return {
        "grants_per_s": grants / elapsed,
        "jain": jain([len(report[0]) for report in reports]),
        "p50_ms": percentile(waits, 0.5) * 1e3,
        "p99_ms": percentile(waits, 0.99) * 1e3,
        "cpu_ms": sum(report[3] for report in reports) / grants * 1e3,
        "hand_over_ms": (elapsed / grants - inside) * 1e3,
        **{f"{what}_per_grant": (after[what] - before[what]) / grants for what in after},
    }


def counted(ports: list[int]) -> dict[str, float]:
    """What the servers have done up to now: requests that came in, writes, watch events that went out."""
    tables = [facts(port) for port in ports]
    return {
        "requests": sum(float(table["zk_packets_received"]) for table in tables),
        "writes": max(float(table.get("zk_cnt_updatelatency", 0)) for table in tables),
        "events": sum(float(table.get("zk_sum_node_deleted_watch_count", 0)) for table in tables),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--processes", type=int, nargs="*", default=[16])
    options.add_argument("--ensemble", action="store_true", help="three servers instead of one")
    given = options.parse_args()
    report = Report("zookeeper", {peer: importlib.metadata.version(peer) for peer in ("lockline", "kazoo")})
    with tempfile.TemporaryDirectory() as folder:
        # As an operator would run it: the whole compiler, no tests' economies.
        server = Ensemble(Path(folder)) if given.ensemble else ZooKeeper(Path(folder))
        members = server.servers if isinstance(server, Ensemble) else [server]
        for member in members:
            member.argv = [word for word in member.argv if word != "-XX:TieredStopAtLevel=1"]
        server.start()
        try:
            run(report, server.url.removeprefix("zk://"), [member.port for member in members], given)
        finally:
            server.stop()
    report.write()


def run(report: Report, hosts: str, ports: list[int], given: argparse.Namespace) -> None:
    with lockline_locker(hosts) as ours, kazoo_locker(hosts) as peer, bare_locker(hosts) as bare:
        lockers = {"lockline": ours, "kazoo Lock": peer, LIMIT: bare}
        uncontended(lockers, 1, 300)  # warms up the server's compiler
        times = uncontended(lockers, given.rounds, 300)
    report.table(
        "uncontended acquire + release",
        [{"peer": peer, "ms": seconds * 1e3, "of_limit": seconds / times[LIMIT]} for peer, seconds in times.items()],
    )
    for processes in given.processes:
        rows = []
        for peer in PEERS:
            runs = [contended(peer, hosts, ports, processes, 0.001, given.seconds) for _ in range(2)]
            rows.append({"peer": peer, **max(runs, key=lambda run: run["grants_per_s"])})
        report.table(f"{processes} processes, 1 ms inside", rows)
        print(f"  lockline / kazoo Lock: {rows[0]['grants_per_s'] / rows[1]['grants_per_s']:.2f}")  # type: ignore[operator]


if __name__ == "__main__":
    main()
