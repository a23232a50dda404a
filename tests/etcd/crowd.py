"""The crowd of tests/redis/crowd.py with holders that take their time: there is always a holder and a queue, and little to compute.

python -m tests.etcd.crowd URL FOLDER NUMBER NAMES TTL
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import lockline
from lockline import aio
from lockline.runtime.blocking import run

from ..redis.crowd import ROOT, Crowd, work
from ..tier import sample

HOLD = sample(0.15, 0.002)
"""Seconds for which each grant is held."""


async def _rest(seconds: float) -> None:
    await asyncio.sleep(HOLD)


def start(url: str, folder: Path, number: int, names: Sequence[str], ttl: float) -> subprocess.Popen[bytes]:
    """One worker."""
    argv = [sys.executable, "-m", "tests.etcd.crowd", url, str(folder), str(number), ",".join(names), str(ttl)]
    return subprocess.Popen(argv, cwd=ROOT)


class PatientCrowd(Crowd):
    """The workers, seen from the test."""

    def __init__(self, url: str, folder: Path, workers: int, names: Sequence[str], ttl: float = 2.0) -> None:
        self.folder = folder
        self.names = names
        self._workers = [start(url, folder, number, names, ttl) for number in range(workers)]


def main(url: str, folder: Path, number: int, names: Sequence[str], ttl: float) -> None:
    """Every second worker is an asyncio one."""
    if number % 2:

        async def on_a_loop() -> None:
            await work(aio.connect(url), _rest, folder, number, names, ttl)

        asyncio.run(on_a_loop())
    else:
        run(work(lockline.connect(url), lambda _: time.sleep(HOLD), folder, number, names, ttl))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","), float(sys.argv[5]))
    os._exit(0)
