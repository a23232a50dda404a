"""A holder that is frozen in the middle of its transaction, in a process of its own; for every database that has `lease.guard`.

python -m tests.guarded URL ENGINE-URL GUARD     where GUARD is "never", "first" or "last"

It takes the lock, reads the balance, says so, waits for a word, adds one to what it has read, commits, and says how that ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import sqlalchemy

import lockline

from .servers.process import freeze

TTL = 5.0
READ = sqlalchemy.text("SELECT balance FROM account WHERE id = 1")
WRITE = sqlalchemy.text("UPDATE account SET balance = :balance WHERE id = 1")


def hold(url: str, engine_url: str, guard: str) -> str:
    """What the commit said."""
    engine = sqlalchemy.create_engine(engine_url)
    engine.connect().close()  # what a first connection takes is no part of the lease's time
    lease = lockline.connect(url).lock("account/1", ttl=TTL).acquire()
    try:
        with engine.begin() as mine:
            if guard == "first":
                lease.guard(mine)
            seen = mine.execute(READ).scalar_one()
            print("read", flush=True)
            sys.stdin.readline()
            mine.execute(WRITE, {"balance": seen + 1})
            if guard == "last":
                lease.guard(mine)
    except (lockline.LeaseLost, sqlalchemy.exc.DBAPIError) as problem:
        return f"refused: {type(problem).__name__}"
    return "committed"


def freeze_a_holder(
    url: str,
    engine_url: str,
    guard: str,
    *,
    for_good: bool = False,
    run_out: Callable[[], object] | Literal[False] = False,
) -> str:
    """Freeze one for more than its ttl; meanwhile the next holder adds ten. What the frozen one's commit said.

    `run_out` ends its time at the database, so that nobody has to wait for the end of its ttl.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.guarded", url, engine_url, guard],
        cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin is not None
    assert child.stdout is not None
    engine = sqlalchemy.create_engine(engine_url)
    try:
        assert child.stdout.readline() == "read\n"
        freeze(child.pid)
        if run_out:
            run_out()
        with lockline.connect(url) as client:
            if not for_good:
                with client.lock("account/1", timeout=60) as lease, engine.begin() as mine:
                    mine.execute(WRITE, {"balance": mine.execute(READ).scalar_one() + 10})
                    lease.guard(mine)
            else:
                # It keeps its claim by its open transaction: nobody comes in between, however long it takes.
                time.sleep(TTL * 1.1)
                assert client.lock("account/1").try_acquire() is None
        os.kill(child.pid, signal.SIGCONT)
        told, _ = child.communicate("go on\n", timeout=60)
        return told.strip()
    finally:
        child.kill()
        child.wait()
        engine.dispose()


if __name__ == "__main__":
    print(hold(*sys.argv[1:]), flush=True)
    os._exit(0)  # without a release: its lease may be lost, which is told already
