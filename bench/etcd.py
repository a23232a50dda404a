"""etcd: Lockline against etcd3's Lock and the bare put transaction + delete, in one run.

python bench/etcd.py [--seconds 4] [--rounds 5] [--processes 16] [--members 1]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# etcd3's generated code is older than today's protobuf: only the slow, pure Python one still takes it.
os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "upb")
sys.path.insert(0, str(Path(__file__).parent.parent))

from report import Report, jain, percentile

from tests.servers.etcd import EtcdCluster

Locker = Callable[[], AbstractContextManager[Any]]


@contextmanager
def lockline_locker(hosts: str) -> Iterator[Locker]:
    import lockline

    with lockline.connect(f"etcd://{hosts}/bench") as client:
        lock = client.lock("bench")
        yield lambda: lock


@contextmanager
def etcd3_locker(hosts: str) -> Iterator[Locker]:
    import etcd3

    host, _, port = hosts.split(",")[0].rpartition(":")
    client = etcd3.client(host=host, port=int(port))
    # A new object each time, as its users write it.
    yield lambda: client.lock("bench", ttl=10)
    client.close()


@contextmanager
def bare_locker(hosts: str) -> Iterator[Locker]:
    """Not a lock: one key put in a transaction and deleted, the least that any lock on etcd must do."""
    from lockline.backends.etcd import channel as ways
    from lockline.backends.etcd import messages as m
    from lockline.backends.etcd import requests
    from lockline.backends.etcd.address import parse
    from lockline.core.blocking import BlockingRuntime, run

    runtime = BlockingRuntime()
    channel = ways.Channel(parse(f"etcd://{hosts}"), runtime, lambda: None)
    lease = run(channel.ask(ways.GRANT, m.LeaseGrantRequest(TTL=60), "LeaseGrantResponse", runtime.now() + 5)).ID

    def ask(request: Any) -> None:
        run(channel.ask(ways.TXN, request, "TxnResponse", runtime.now() + 5))

    @contextmanager
    def made() -> Iterator[None]:
        key = b"bare/key"
        ask(m.TxnRequest(compare=[requests.created(key, 0)], success=[requests.put(key, b"x" * 90, lease)]))
        yield
        ask(m.TxnRequest(success=[requests.delete(key)]))

    yield made
    channel.close()


PEERS = {"lockline": lockline_locker, "etcd3 Lock": etcd3_locker}
LIMIT = "bare put+delete"
COUNTERS = {
    "writes": ("etcd_server_proposals_applied_total",),
    "reads": ('grpc_server_handled_total{grpc_code="OK",grpc_method="Range"',),
    "txns": ('grpc_server_handled_total{grpc_code="OK",grpc_method="Txn"',),
    "events": ("etcd_debugging_mvcc_events_total",),
}


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


def alone(peer: str, hosts: str, rounds: int, pipe: Connection) -> None:
    """The same in a process of its own, for a peer that needs another protobuf."""
    try:
        with PEERS[peer](hosts) as locker:
            uncontended({peer: locker}, 1, 20)
            pipe.send(uncontended({peer: locker}, rounds, 100)[peer])
    except Exception as problem:
        pipe.send(f"{type(problem).__name__}: {problem}"[:120])


def worker(peer: str, hosts: str, hold: float, seconds: float, pipe: Connection) -> None:
    """Take the lock again and again; report each wait and the time spent inside."""
    try:
        with PEERS[peer](hosts) as locker:
            with locker():
                pass
            pipe.send("ready")
            start = pipe.recv()
            while time.monotonic() < start:
                time.sleep(0.0005)
            waits: list[float] = []
            end = start + seconds
            spent = time.process_time()
            while (asked := time.monotonic()) < end:
                with locker():
                    got = time.monotonic()
                    time.sleep(hold)
                waits.append(got - asked)
            pipe.send((waits, time.monotonic() - start, time.process_time() - spent))
    except Exception as problem:
        pipe.send(f"{type(problem).__name__}: {problem}"[:120])


def contended(peer: str, cluster: EtcdCluster, processes: int, hold: float, seconds: float) -> dict[str, object]:
    """Grants per second, fairness, waits, and what it cost the servers."""
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for _ in range(processes):
        ours, theirs = context.Pipe()
        child = context.Process(target=worker, args=(peer, cluster.hosts, hold, seconds, theirs), daemon=True)
        child.start()
        pipes.append(ours)
        children.append(child)
    try:
        first = [pipe.recv() if pipe.poll(30) else "stuck for 30 s" for pipe in pipes]
        broken = [word for word in first if word != "ready"]
        if not broken:
            before = counted(cluster)
            start = time.monotonic() + 0.2
            for pipe in pipes:
                pipe.send(start)
            reports = [pipe.recv() if pipe.poll(seconds + 30) else "stuck" for pipe in pipes]
            after = counted(cluster)
            broken = [word for word in reports if isinstance(word, str)]
        if broken:
            return {"grants_per_s": 0.0, "problem": broken[0]}
    finally:
        for child in children:
            child.join(1)
            child.kill()
    waits = sorted(wait for report in reports for wait in report[0])
    grants = len(waits)
    elapsed = max(report[1] for report in reports)
    return {
        "grants_per_s": grants / elapsed,
        "jain": jain([len(report[0]) for report in reports]),
        "p50_ms": percentile(waits, 0.5) * 1e3,
        "p99_ms": percentile(waits, 0.99) * 1e3,
        "cpu_ms": sum(report[2] for report in reports) / grants * 1e3,
        **{f"{what}_per_grant": (after[what] - before[what]) / grants for what in after},
    }


def counted(cluster: EtcdCluster) -> dict[str, float]:
    """What the servers have done up to now; writes are what the first of them has applied."""
    tables = [member.metrics() for member in cluster.members]

    def total(names: tuple[str, ...], of: list[dict[str, float]]) -> float:
        return sum(value for table in of for key, value in table.items() if key.startswith(names))

    return {
        what: total(names, tables[:1] if what in ("writes", "events") else tables) for what, names in COUNTERS.items()
    }


def run_all(report: Report, cluster: EtcdCluster, given: argparse.Namespace) -> None:
    with lockline_locker(cluster.hosts) as ours, bare_locker(cluster.hosts) as bare:
        lockers = {"lockline": ours, LIMIT: bare}
        uncontended(lockers, 1, 100)
        times = uncontended(lockers, given.rounds, 300)
    rows: list[dict[str, object]] = [
        {"peer": peer, "ms": seconds * 1e3, "of_limit": seconds / times[LIMIT]} for peer, seconds in times.items()
    ]
    os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    child = context.Process(target=alone, args=("etcd3 Lock", cluster.hosts, given.rounds, theirs), daemon=True)
    child.start()
    answer = mine.recv() if mine.poll(60) else "stuck"
    child.join(1)
    child.kill()
    if isinstance(answer, float):
        rows.append({"peer": "etcd3 Lock", "ms": answer * 1e3, "of_limit": answer / times[LIMIT]})
    else:
        rows.append({"peer": "etcd3 Lock", "problem": answer})
    report.table("uncontended acquire + release", rows)
    for processes in given.processes:
        found = []
        for peer in PEERS:
            os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python" if peer == "etcd3 Lock" else "upb"
            runs = [contended(peer, cluster, processes, 0.001, given.seconds) for _ in range(2)]
            best = max(runs, key=lambda run: float(str(run["grants_per_s"])))
            found.append({"peer": peer, **best})
        report.table(f"{processes} processes, 1 ms inside", found)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--processes", type=int, nargs="*", default=[16])
    options.add_argument("--members", type=int, default=1)
    given = options.parse_args()
    report = Report(
        "etcd", {peer: importlib.metadata.version(peer) for peer in ("lockline", "h2", "protobuf", "etcd3")}
    )
    with tempfile.TemporaryDirectory() as folder:
        cluster = EtcdCluster(Path(folder), given.members).start()
        try:
            run_all(report, cluster, given)
        finally:
            cluster.stop()
    report.write()


if __name__ == "__main__":
    main()
