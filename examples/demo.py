"""The main job in three acts: updates get lost, a lock keeps them, a frozen holder overwrites, and is refused by its token.

python examples/demo.py
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lockline
from lockline.fence import FileFence

PROCESSES, TIMES = 8, 50
TTL = 1.0


def add_one(file: Path) -> None:
    """Read, think, write: the moment between is where updates get lost."""
    number = int(file.read_text())
    time.sleep(0.0005)
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_text(str(number + 1))
    draft.replace(file)


def without_a_lock(file: Path, name: str, together: Any) -> None:
    together.wait()
    for _ in range(TIMES):
        add_one(file)


def under_a_lock(file: Path, name: str, together: Any) -> None:
    with lockline.connect() as client:
        together.wait()
        for _ in range(TIMES):
            with client.lock(name):
                add_one(file)


def act(title: str, work: Any, folder: Path, name: str) -> int:
    """Run the work in several processes; how many updates were lost."""
    file = folder / f"{work.__name__}.txt"
    file.write_text("0")
    together = multiprocessing.Barrier(PROCESSES + 1)
    children = [multiprocessing.Process(target=work, args=(file, name, together)) for _ in range(PROCESSES)]
    for child in children:
        child.start()
    together.wait(60)
    began = time.monotonic()
    for child in children:
        child.join()
    number, wanted = int(file.read_text()), PROCESSES * TIMES
    took = time.monotonic() - began
    print(f"{title}\n   {PROCESSES} processes add one {TIMES} times each: {number} of {wanted} in {took:.1f} s, "
          f"{wanted - number} updates lost\n")  # fmt: skip
    return wanted - number


def freezes(file: Path, name: str, fenced: bool, stage: Any) -> None:
    """A holder that is stopped between its read and its write, and then goes on as if nothing had happened."""
    logging.basicConfig(format="   (log of the first one: %(message)s)")
    fence = FileFence()
    with lockline.connect(owner="the frozen one") as client:
        lease = client.lock(name, ttl=TTL).acquire()
        number = int(fence.read(file, lease) if fenced else file.read_text())
        stage.send((number, lease.token))
        os.kill(os.getpid(), signal.SIGSTOP)
        # From here on it is another time, and this process cannot know that by itself.
        outcome = f"lease.valid is {lease.valid}"
        try:
            if fenced:
                fence.replace(file, lease, str(number + 1))
            else:
                file.write_text(str(number + 1))
            outcome += f", and its write of {number + 1} WINS"
        except lockline.StaleToken as refused:
            outcome += f", and its write is refused: {refused}"
        try:
            lease.release()
        except lockline.LeaseLost as lost:
            outcome += f"\n   its release says: {lost}"
        stage.send(outcome)


def frozen_holder(folder: Path, name: str, *, fenced: bool) -> int:
    """What a file says after a holder was frozen past its ttl, the next one wrote, and the frozen one woke up."""
    print("   the same again, and a fence stands at the file" if fenced else "3. a holder is frozen past its ttl")
    file, fence = folder / ("fenced.txt" if fenced else "balance.txt"), FileFence()
    file.write_text("100")
    stage, theirs = multiprocessing.Pipe()
    frozen = multiprocessing.Process(target=freezes, args=(file, name, fenced, theirs))
    frozen.start()
    number, old_token = stage.recv()
    print(f"   the first holder (token {old_token}) reads {number} and is frozen; its lease of {TTL:.0f} s runs out")
    with lockline.connect(owner="the next one") as client, client.lock(name, ttl=TTL) as lease:
        balance = int(fence.read(file, lease) if fenced else file.read_text())
        if fenced:
            fence.replace(file, lease, str(balance + 50))
        else:
            file.write_text(str(balance + 50))
        print(f"   the next holder (token {lease.token}) reads {balance} and writes {balance + 50}")
        assert frozen.pid is not None
        assert lease.token > old_token
        os.kill(frozen.pid, signal.SIGCONT)
        print(f"   the first one wakes: {stage.recv()}")
        frozen.join()
        lease.check()
    print(f"   the file says {file.read_text()}{'' if fenced else ': the 50 are gone'}\n")
    return int(file.read_text())


def main() -> int:
    multiprocessing.set_start_method("spawn")
    name = f"demo/{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        lost_without = act("1. without a lock", without_a_lock, Path(folder), name)
        lost_with = act("2. under lockline", under_a_lock, Path(folder), name)
        overwritten = frozen_holder(Path(folder), name, fenced=False) == 101
        kept_out = frozen_holder(Path(folder), name, fenced=True) == 150
    if lost_without > 0 and lost_with == 0 and overwritten and kept_out:
        print(
            "as it should be: lost without, none lost with, and the late write won without a fence and was refused by one"
        )
        print(
            "every lock of the literature against every failure, on real servers, with pictures: lockline lab --html lab.html"
        )
        return 0
    print("this is not as it should be", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
