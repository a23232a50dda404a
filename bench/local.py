"""`local:` against filelock and portalocker, in one run: uncontended, and 2, 16 and 64 processes.

python bench/local.py [--seconds 2] [--rounds 3]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from report import Report, jain, percentile

Locker = Callable[[], AbstractContextManager[Any]]


@contextmanager
def lockline_locker(folder: Path) -> Iterator[Locker]:
    import lockline

    with lockline.connect(f"local://{folder}/local.db") as client:
        lock = client.lock("bench")
        yield lambda: lock


@contextmanager
def filelock_locker(folder: Path) -> Iterator[Locker]:
    import filelock

    lock = filelock.FileLock(folder / "filelock.lock")
    yield lambda: lock


@contextmanager
def portalocker_locker(folder: Path) -> Iterator[Locker]:
    import portalocker

    yield lambda: portalocker.Lock(folder / "portalocker.lock", timeout=600)


PEERS = {"lockline": lockline_locker, "filelock": filelock_locker, "portalocker": portalocker_locker}


def uncontended(peer: str, rounds: int) -> float:
    """Seconds for one acquire and release, the best of several rounds."""
    best = float("inf")
    with tempfile.TemporaryDirectory() as folder, PEERS[peer](Path(folder)) as locker:
        for _ in range(rounds):
            count = 3000
            began = time.perf_counter()
            for _ in range(count):
                with locker():
                    pass
            best = min(best, (time.perf_counter() - began) / count)
    return best


def worker(peer: str, folder: str, hold: float, seconds: float, pipe: Connection) -> None:
    """Take the lock again and again; report each wait and the time spent inside."""
    with PEERS[peer](Path(folder)) as locker:
        with locker():
            pass
        pipe.send("ready")
        start = pipe.recv()
        while time.monotonic() < start:
            time.sleep(0.0005)
        waits: list[float] = []
        inside = 0.0
        end = start + seconds
        while True:
            asked = time.monotonic()
            if asked >= end:
                break
            with locker():
                got = time.monotonic()
                if hold:
                    time.sleep(hold)
                inside += time.monotonic() - got
            waits.append(got - asked)
        pipe.send((waits, inside, time.monotonic() - start))


def contended(peer: str, processes: int, hold: float, seconds: float) -> dict[str, float]:
    """Grants per second, fairness and waits of that many processes on one lock."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        pipes, children = [], []
        for _ in range(processes):
            ours, theirs = context.Pipe()
            child = context.Process(target=worker, args=(peer, folder, hold, seconds, theirs))
            child.start()
            pipes.append(ours)
            children.append(child)
        for pipe in pipes:
            pipe.recv()
        start = time.monotonic() + 0.2
        for pipe in pipes:
            pipe.send(start)
        reports = [pipe.recv() for pipe in pipes]
        for child in children:
            child.join()
    waits = sorted(wait for report in reports for wait in report[0])
    grants = len(waits)
    elapsed = max(report[2] for report in reports)
    inside = sum(report[1] for report in reports) / grants
    period = elapsed / grants
    return {
        "grants_per_s": grants / elapsed,
        "jain": jain([len(report[0]) for report in reports]),
        "p50_ms": percentile(waits, 0.5) * 1e3,
        "p99_ms": percentile(waits, 0.99) * 1e3,
        "longest_ms": waits[-1] * 1e3,
        "hand_over_ms": (period - inside) * 1e3,
        "p99_of_fair_turn": percentile(waits, 0.99) / (processes * period),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=2.0)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--processes", type=int, nargs="*", default=[2, 16, 64])
    given = options.parse_args()
    report = Report("local", {peer: importlib.metadata.version(peer) for peer in PEERS})

    times = {peer: uncontended(peer, given.rounds) for peer in PEERS}
    report.table(
        "uncontended acquire + release",
        [
            {"peer": peer, "us": seconds * 1e6, "of_filelock": seconds / times["filelock"]}
            for peer, seconds in times.items()
        ],
    )
    for processes in given.processes:
        for hold in (0.0, 0.001):
            rows = []
            for peer in PEERS:
                runs = [contended(peer, processes, hold, given.seconds) for _ in range(2)]
                rows.append({"peer": peer, **max(runs, key=lambda run: run["grants_per_s"])})
            report.table(f"{processes} processes, {hold * 1e3:.0f} ms inside", rows)
    report.write()


if __name__ == "__main__":
    main()
