"""One of many that take a lock again and again, write to a register behind a fence, and say when they held.

python -m tests.zookeeper.fault_worker URL REGISTER ENOUGH SEED: until there is a file ENOUGH
"""

from __future__ import annotations

import fcntl
import json
import random
import sys
import time
from pathlib import Path

import lockline
from lockline import LocklineError
from lockline.runtime.clock import now


def write(register: str, token: int) -> bool:
    """Write if no higher token has been here; the file is the resource, its lock makes the check and the write one step."""
    with open(register, "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        tokens = file.read().split()
        if tokens and int(tokens[-1]) > token:
            return False
        file.write(f"{token}\n")
        return True


def main() -> None:
    url, register, enough, seed = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
    dice = random.Random(seed)
    client = lockline.connect(url)
    while not enough.exists():
        try:
            lease = client.lock("x", ttl=2).acquire(timeout=5)
        except LocklineError as problem:
            print(json.dumps({"error": type(problem).__name__, "at": now()}), flush=True)
            time.sleep(0.05)
            continue
        began = trusted = 0.0
        accepted = None
        hold = time.monotonic() + dice.uniform(0.001, 0.02)
        while True:
            # The moment before the look: the lease was good at that moment, whatever happens to us in between.
            moment = now()
            if not lease.valid:
                break
            began, trusted = began or moment, moment
            if accepted is None:
                accepted = write(register, lease.token)
            if time.monotonic() >= hold:
                break
            time.sleep(0.001)
        try:
            lease.release()
        except LocklineError:
            pass
        if began:
            print(json.dumps({"token": lease.token, "from": began, "to": trusted, "accepted": accepted}), flush=True)
    client.close()


if __name__ == "__main__":
    main()
