"""One client process of the live trial: takes locks as fast as it gets them, and writes down what it was told.

Run as `python -m tests.redlock.live_client URL FOLDER NUMBER SECONDS PAUSE`. The wall clock that it hints with is stepped at random.
"""

from __future__ import annotations

import fcntl
import os
import random
import sys
import time
from pathlib import Path
from typing import IO, Any

import lockline
from lockline.runtime import clock

TTL = 1.0
NAMES = 4


class FencedFile:
    """A number in a file that fences, for all processes: `enter` before the first read, again with the write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT)
        self._path = path

    def _locked(self, act: Any) -> Any:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            words = os.pread(self._file, 200, 0).decode().split()
            mark, grant, value, writes = (
                (int(words[0]), words[1], int(words[2]), int(words[3])) if words else (0, "-", 0, 0)
            )
            state, answer = act(mark, grant, value, writes)
            if state is not None:
                os.pwrite(self._file, " ".join(map(str, state)).ljust(150).encode(), 0)
            return answer
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def enter(self, token: int, grant: str) -> int | None:
        """The value; None for a holder that is not the newest."""

        def act(mark: int, owner: str, value: int, writes: int) -> Any:
            if token < mark or (token == mark and grant != owner):
                return None, None
            return (token, grant, value, writes), value

        return self._locked(act)  # type: ignore[no-any-return]

    def write(self, token: int, grant: str, value: int) -> bool:
        """Whether the write was let through."""

        def act(mark: int, owner: str, old: int, writes: int) -> Any:
            if token < mark or (token == mark and grant != owner):
                return None, False
            return (token, grant, value, writes + 1), True

        return self._locked(act)  # type: ignore[no-any-return]


def live(url: str, folder: Path, number: int, seconds: float, pause: float, log: IO[str]) -> None:
    chance = random.Random(number)
    client = lockline.connect(url, owner=f"client-{number}", node_timeout=0.1)
    port = client._engine.backend.channel  # type: ignore[attr-defined]
    offset = 0
    port.wall = lambda: time.time_ns() // 1000 + offset
    resources = [FencedFile(folder / f"resource-{n}") for n in range(NAMES)]
    end = clock.now() + seconds
    while clock.now() < end:
        if pause:
            time.sleep(chance.uniform(0.0, 2 * pause))
        if chance.random() < 0.02:
            offset = int(chance.uniform(-3600, 3600) * 1e6)
        name = chance.randrange(NAMES)
        try:
            lease = client.lock(f"live-{name}", ttl=TTL, renew=chance.random() < 0.5).acquire(timeout=2)
        except (lockline.AcquireTimeout, lockline.BackendUnavailable):
            continue
        answered = clock.now()
        stood = client._engine.backend._stood[lease.id]  # type: ignore[attr-defined]
        sent = stood.attempt.sent
        once = not stood.attempt.promoted
        value = resources[name].enter(lease.token, lease.id)
        if chance.random() < 0.02:
            # A holder that is held up, past the end of its lease at times.
            time.sleep(chance.uniform(0.0, 1.5) * TTL)
        written = value is not None and resources[name].write(lease.token, lease.id, value + 1)
        until = (
            min(clock.now(), answered + max(0.0, lease.remaining() + clock.now() - answered)) if lease.valid else None
        )
        log.write(
            f"{name} {lease.token} {sent:.6f} {answered:.6f} {until or 0:.6f} {lease.id} {int(once)} {int(written)}\n"
        )
        try:
            lease.release()
        except lockline.LocklineError:
            pass
    client.close()


if __name__ == "__main__":
    place = Path(sys.argv[2])
    with open(place / f"grants-{sys.argv[3]}.log", "w") as opened:
        live(sys.argv[1], place, int(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]), opened)
