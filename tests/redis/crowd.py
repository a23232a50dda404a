"""Many processes, blocking and asyncio ones, that take the same locks again and again, and the history of what they held.

Each worker writes one line per grant: who, token, from when to when it trusted it, and what the fence at the resource said.
The resource is a file with the highest token that has been there; it lets nobody in with a lower one.

    python -m tests.redis.crowd URL FOLDER NUMBER NAMES TTL
"""

from __future__ import annotations

import asyncio
import fcntl
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lockline
from lockline import aio
from lockline.runtime.blocking import run

from ..calm import calm

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Held:
    """One grant as its holder saw it."""

    worker: int
    name: str
    token: int
    began: float
    ended: float
    until: float
    """Not later than when its lease would have ended by itself: a ttl after it was last confirmed."""
    lost: bool
    stale: bool


class Resource:
    """A file that remembers the highest token per name and refuses lower ones."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"resource-{name}"
        self._log = folder / f"accepted-{name}"

    def offer(self, token: int, writes: bool) -> bool:
        """Whether this token may (still) be here; a write that is let in is noted."""
        with open(self._path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            highest = int(file.read() or 0)
            if token < highest:
                return False
            file.truncate(0)
            file.write(str(token))
            file.flush()
            if writes:
                with open(self._log, "a") as log:
                    log.write(f"{token}\n")
            return True


async def now(outcome: Any) -> Any:
    """The outcome of a call of either flavour."""
    return await outcome if inspect.isawaitable(outcome) else outcome


async def work(
    client: Any, sleep: Callable[[float], Any], folder: Path, number: int, names: Sequence[str], ttl: float
) -> None:
    """Take the locks in turn until the folder has a file `stop`."""
    history = open(folder / f"history-{number}", "a", buffering=1)  # noqa: SIM115, ASYNC230
    turn = number
    while not (folder / "stop").exists():
        name = names[turn % len(names)]
        turn += 1
        try:
            lease = await now(client.lock(name, ttl=ttl).acquire(timeout=10))
        except lockline.LocklineError as problem:
            history.write(json.dumps({"error": repr(problem), "at": time.monotonic()}) + "\n")
            await now(sleep(0.05))
            continue
        began = time.monotonic()
        until = began + lease.remaining()
        resource = Resource(folder, name)
        entered = resource.offer(lease.token, writes=False)
        # Long enough that the crowd leaves the machine something for the servers and for the other tests.
        await now(sleep(0.01))
        wrote = entered and resource.offer(lease.token, writes=True)
        ended = min(time.monotonic(), began + lease.remaining()) if lease.valid else began
        lost = False
        try:
            await now(lease.release())
        except lockline.LeaseLost:
            lost = True
        except lockline.LocklineError as problem:
            history.write(json.dumps({"error": repr(problem), "at": time.monotonic()}) + "\n")
        history.write(json.dumps([number, name, lease.token, began, ended, until, lost, not wrote]) + "\n")
    await now(client.close())


def work_by_turns(url: str, folder: Path, number: int, names: Sequence[str], ttl: float) -> None:
    """Every second worker is an asyncio one."""
    if number % 2:

        async def on_a_loop() -> None:
            await work(aio.connect(url), asyncio.sleep, folder, number, names, ttl)

        asyncio.run(on_a_loop())
    else:
        run(work(lockline.connect(url), time.sleep, folder, number, names, ttl))


class Crowd:
    """The workers, seen from the test."""

    def __init__(self, url: str, folder: Path, workers: int, names: Sequence[str], ttl: float = 2.0) -> None:
        self.folder = folder
        self.names = names
        self._workers = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.redis.crowd", url, str(folder), str(number), ",".join(names), str(ttl)],
                cwd=ROOT,
            )
            for number in range(workers)
        ]

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Let everybody finish; whoever does not is killed, and that is a failure."""
        (self.folder / "stop").touch()
        stuck = []
        for number, worker in enumerate(self._workers):
            try:
                worker.wait(60)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
                stuck.append(number)
        assert not stuck, f"workers {stuck} did not come to an end"

    def _lines(self) -> list[object]:
        found: list[object] = []
        for number in range(len(self._workers)):
            path = self.folder / f"history-{number}"
            if path.exists():
                found += [json.loads(line) for line in path.read_text().splitlines() if line.endswith(("]", "}"))]
        return found

    def history(self) -> list[Held]:
        """Every grant so far, in the order in which they began."""
        grants = [Held(*line) for line in self._lines() if isinstance(line, list)]
        return sorted(grants, key=lambda held: held.began)

    def errors(self) -> list[dict[str, object]]:
        """What was raised."""
        return [line for line in self._lines() if isinstance(line, dict)]

    def wait_for_grants(self, each: int = 1, since: float = 0.0, seconds: float = 120.0) -> None:
        """Wait until every worker has had that many grants since then."""
        until = calm() + seconds
        while True:
            counts = dict.fromkeys(range(len(self._workers)), 0)
            for held in self.history():
                if held.began >= since:
                    counts[held.worker] += 1
            if min(counts.values()) >= each:
                return
            if calm() > until:
                raise AssertionError(f"grants since then: {counts}; errors: {self.errors()[-5:]}")
            time.sleep(0.1)

    def overlaps(self) -> list[tuple[Held, Held]]:
        """Pairs of grants on one name that were trusted at the same time."""
        found = []
        for name in self.names:
            last: Held | None = None
            for held in (held for held in self.history() if held.name == name):
                if last is not None and held.began < last.ended:
                    found.append((last, held))
                if last is None or held.ended > last.ended:
                    last = held
        return found

    def check_tokens(self) -> None:
        """No token twice, and none lower than that of a grant that had ended before."""
        for name in self.names:
            grants = [held for held in self.history() if held.name == name]
            tokens = [held.token for held in grants]
            assert len(set(tokens)) == len(tokens), "a token was given twice"
            highest_ended: list[tuple[float, int]] = sorted((held.ended, held.token) for held in grants)
            at, highest = 0, 0
            for held in grants:
                while at < len(highest_ended) and highest_ended[at][0] <= held.began:
                    highest = max(highest, highest_ended[at][1])
                    at += 1
                # A grant that was over as it began is itself among those that have ended.
                assert held.token >= highest, f"{held} came after token {highest}"

    def check_resource(self) -> None:
        """The resource accepted no stale write."""
        for name in self.names:
            path = self.folder / f"accepted-{name}"
            accepted = [int(line) for line in path.read_text().splitlines()]
            assert accepted == sorted(accepted)


if __name__ == "__main__":
    work_by_turns(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4].split(","), float(sys.argv[5]))
    os._exit(0)
