"""ZooKeeper: Lockline against kazoo's Lock and the bare create + delete of an ephemeral node, in one run.

python bench/zookeeper.py [--seconds 4] [--rounds 5] [--processes 16] [--warm-up 20] [--ensemble]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from crowd import Locker, contended, uncontended
from report import Report

from tests.servers.zookeeper import Ensemble, ZooKeeper, facts


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


def counted(members: list[ZooKeeper]) -> dict[str, float]:
    """What the servers have done up to now: requests that came in, writes, watch events that went out, and the CPU for it all."""
    tables = [facts(member.port) for member in members]
    spent = [Path(f"/proc/{member.pid}/stat").read_text().rpartition(")")[2].split() for member in members]
    return {
        "server_ms": sum(int(one[11]) + int(one[12]) for one in spent) / os.sysconf("SC_CLK_TCK") * 1e3,
        "requests": sum(float(table["zk_packets_received"]) for table in tables),
        "writes": max(float(table.get("zk_cnt_updatelatency", 0)) for table in tables),
        "events": sum(float(table.get("zk_sum_node_deleted_watch_count", 0)) for table in tables),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=4.0)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--processes", type=int, nargs="*", default=[16])
    options.add_argument(
        "--warm-up", type=float, default=20.0, help="seconds of a crowd's work before anything is measured"
    )
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
            run(report, server.url.removeprefix("zk://"), members, given)
        finally:
            server.stop()
    report.write()


def run(report: Report, hosts: str, members: list[ZooKeeper], given: argparse.Namespace) -> None:
    with lockline_locker(hosts) as ours, kazoo_locker(hosts) as theirs, bare_locker(hosts) as bare:
        lockers = {"lockline": ours, "kazoo Lock": theirs, LIMIT: bare}
        uncontended(lockers, 1, 300)
        times = uncontended(lockers, given.rounds, 300)
    report.table(
        "uncontended acquire + release",
        [{"peer": peer, "ms": seconds * 1e3, "of_limit": seconds / times[LIMIT]} for peer, seconds in times.items()],
    )
    # The server's compiler is at work for its first minute, and takes as much CPU as the server then.
    until = time.monotonic() + given.warm_up
    while time.monotonic() < until:
        for opener in PEERS.values():
            contended(opener, hosts, 4, 0.0, 1.0)
    for processes in given.processes:
        # Nothing inside shows the lock alone; a millisecond, what is left of that beside some work.
        for hold in (0.0, 0.001):
            rows = []
            for peer, opener in PEERS.items():
                runs = [
                    contended(opener, hosts, processes, hold, given.seconds, counted=partial(counted, members))
                    for _ in range(2)
                ]
                rows.append({"peer": peer, **max(runs, key=lambda run: run["grants_per_s"])})
            report.table(f"{processes} processes, {hold * 1e3:.0f} ms inside", rows)
            print(f"  lockline / kazoo Lock: {rows[0]['grants_per_s'] / rows[1]['grants_per_s']:.2f}")


if __name__ == "__main__":
    main()
