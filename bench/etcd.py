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
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

# etcd3's generated code is older than today's protobuf: only the slow, pure Python one still takes it.
os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "upb")
sys.path.insert(0, str(Path(__file__).parent.parent))

from crowd import Locker, contended, uncontended
from report import Report

from tests.servers.etcd import EtcdCluster


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
    from lockline.backends.etcd import commands
    from lockline.backends.etcd import messages as m
    from lockline.backends.etcd.channel import EtcdChannel
    from lockline.backends.etcd.target import parse
    from lockline.runtime.blocking import BlockingRuntime, run

    runtime = BlockingRuntime()
    channel = EtcdChannel(parse(f"etcd://{hosts}"), runtime, lambda: None)
    lease = run(channel.ask(commands.GRANT, m.LeaseGrantRequest(TTL=60), runtime.now() + 5)).ID

    def ask(request: bytes) -> None:
        run(channel.transact(request, runtime.now() + 5))

    key = b"bare/key"
    # Once for all: to put them together is not what has to be done for each.
    make = m.TxnRequest(
        compare=[commands.created(key, 0)], success=[commands.put(key, b"x" * 90, lease)]
    ).SerializeToString()
    remove = m.TxnRequest(success=[commands.delete(key)]).SerializeToString()

    @contextmanager
    def made() -> Iterator[None]:
        ask(make)
        yield
        ask(remove)

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


def alone(peer: str, hosts: str, rounds: int, pipe: Connection) -> None:
    """The same in a process of its own, for a peer that needs another protobuf."""
    try:
        with PEERS[peer](hosts) as locker:
            uncontended({peer: locker}, 1, 20)
            pipe.send(uncontended({peer: locker}, rounds, 100)[peer])
    except Exception as problem:
        pipe.send(f"{type(problem).__name__}: {problem}"[:120])


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
        for peer, opener in PEERS.items():
            os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python" if peer == "etcd3 Lock" else "upb"
            runs = [
                contended(opener, cluster.hosts, processes, 0.001, given.seconds, counted=partial(counted, cluster))
                for _ in range(2)
            ]
            found.append({"peer": peer, **max(runs, key=lambda run: run["grants_per_s"])})
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
