"""Many processes increment one number under one lock while they are killed at random; prints what came of it as JSON.

    python -m tests.local.incrementers FOLDER [PROCESSES] [TIMES] [SEED]

Every process of a slot goes on where the last one of that slot got to, as the file says: the file is replaced in one
step with the number, the counts of all slots and the last token.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import lockline

from ..calm import calm

TTL = 600.0
"""Far longer than any wait that is allowed, so that nothing is healed by expiry."""


def load(file: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(file.read_bytes())
    return record


def replace(file: Path, record: dict[str, Any]) -> None:
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(record))
    os.rename(draft, file)


def increment(folder: Path, slot: int, times: int) -> None:
    """What one process does; it may die at any instruction."""
    file = folder / "number.json"
    with lockline.connect(f"local://{folder}/local.db") as client:
        lock = client.lock("number", ttl=TTL)
        done = load(file)["counts"][slot]
        while done < times:
            with lock as lease:
                record = load(file)
                if record["number"] != sum(record["counts"]):
                    record["wrong"].append(f"{record['number']} is not the sum of its parts")
                if lease.token <= record["token"]:
                    record["wrong"].append(f"token {lease.token} after {record['token']}")
                record["number"] += 1
                record["counts"][slot] += 1
                record["token"] = lease.token
                done = record["counts"][slot]
                replace(file, record)


def start(folder: Path, slot: int, times: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        increment(folder, slot, times)
        code = 0
    except BaseException as error:
        (folder / f"error-{os.getpid()}").write_text(repr(error))
    finally:
        os._exit(code)


def main(folder: Path, processes: int, times: int, seed: int) -> None:
    chance = random.Random(seed)
    first = {"number": 0, "counts": [0] * processes, "token": 0, "wrong": []}
    replace(folder / "number.json", first)
    running = {start(folder, slot, times): slot for slot in range(processes)}
    killed = 0
    until = calm() + 100
    next_kill = 0
    while running and calm() < until:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            slot = running.pop(pid)
            if os.WIFSIGNALED(status):
                running[start(folder, slot, times)] = slot
            continue
        time.sleep(chance.uniform(0.001, 0.02))
        # By what was done, not by the clock: on a busy machine the killer would outrun those who work.
        number = load(folder / "number.json")["number"]
        # Near the end fewer and fewer run: let them finish.
        if number >= next_kill and len(running) > processes // 2:
            next_kill = number + chance.randint(1, 50)
            victim = chance.choice(list(running))
            os.kill(victim, signal.SIGKILL)
            killed += 1
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    errors = [path.read_text() for path in folder.glob("error-*")]
    print(json.dumps({**load(folder / "number.json"), "killed": killed, "unfinished": len(running), "errors": errors}))


if __name__ == "__main__":
    arguments = [*sys.argv[2:], "50", "100", "1"][:3] if len(sys.argv) == 2 else sys.argv[2:]
    main(Path(sys.argv[1]), *(int(argument) for argument in arguments))
