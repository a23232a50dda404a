"""`local:` against filelock and portalocker, in one run: uncontended, and 2, 16 and 64 processes.

python bench/local.py [--seconds 2] [--rounds 3]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from crowd import Locker, contended, uncontended
from report import Report


@contextmanager
def lockline_locker(folder: str) -> Iterator[Locker]:
    import lockline

    with lockline.connect(f"local://{folder}/local.db") as client:
        lock = client.lock("bench")
        yield lambda: lock


@contextmanager
def filelock_locker(folder: str) -> Iterator[Locker]:
    import filelock

    lock = filelock.FileLock(f"{folder}/filelock.lock")
    yield lambda: lock


@contextmanager
def portalocker_locker(folder: str) -> Iterator[Locker]:
    import portalocker

    yield lambda: portalocker.Lock(f"{folder}/portalocker.lock", timeout=600)


PEERS = {"lockline": lockline_locker, "filelock": filelock_locker, "portalocker": portalocker_locker}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=2.0)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--processes", type=int, nargs="*", default=[2, 16, 64])
    given = options.parse_args()
    report = Report("local", {peer: importlib.metadata.version(peer) for peer in PEERS})

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        lockers = {peer: stack.enter_context(opener(folder)) for peer, opener in PEERS.items()}
        times = uncontended(lockers, given.rounds, 3000)
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
            for peer, opener in PEERS.items():
                with tempfile.TemporaryDirectory() as folder:
                    runs = [contended(opener, folder, processes, hold, given.seconds, method="fork") for _ in range(2)]
                rows.append({"peer": peer, **max(runs, key=lambda run: run["grants_per_s"])})
            report.table(f"{processes} processes, {hold * 1e3:.0f} ms inside", rows)
    report.write()


if __name__ == "__main__":
    main()
