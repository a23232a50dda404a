"""A child that kills itself (SIGKILL) at the n-th step of a write, for every n.

Every call into the system that a write makes is a step, and a write of bytes is two: before it, and after half of it.
Run as a program it reads one `[what, step, path...]` of JSON per line and answers each with how a child of its own ended:
0 or -9. (One process that forks, because starting Python anew for each of a hundred deaths takes a minute.)
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from lockline.fence import FileFence, FileMarks, Offer, S3Fence, SqlFence

CALLS = ("open", "write", "fsync", "rename", "ftruncate", "close", "fchmod")


class Reaper:
    """Counts steps, and ends the process at the one it was told to."""

    def __init__(self, last: int) -> None:
        self.left = last

    def step(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        for name in CALLS:
            setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **kwargs: Any) -> Any:
            self.step()
            if name == "write" and len(args[1]) > 1:
                half = call(args[0], args[1][: len(args[1]) // 2])
                self.step()
                return half
            return call(*args, **kwargs)

        return stepped


def die(what: str, last: int, *rest: str) -> None:
    """Do this, and be killed at that step if there are as many."""
    reaper = Reaper(last)
    if what in ("replace", "append", "enter"):
        fence = FileFence()
        reaper.watch()
        if what == "enter":
            fence.enter(rest[0], 6, lock="l")
        else:
            getattr(fence, what)(rest[0], 6, "NEW CONTENT" * 50, lock="l")
    elif what == "marks":
        marks = FileMarks(rest[0])
        reaper.watch()
        marks.admit("r", Offer("l", 6, ""), writes=True, patience=5)()
    elif what == "s3":
        from .objects import an_s3

        client = an_s3(rest[0], retries={"total_max_attempts": 1})
        call = client._make_api_call

        def stepped(name: str, arguments: Any) -> Any:
            reaper.step()
            answer = call(name, arguments)
            reaper.step()
            return answer

        client._make_api_call = stepped
        S3Fence(client, "bucket").enter(rest[1], 6, lock="l").put(b"6")
    else:
        connection: Any
        if what == "sqlite":
            import sqlite3

            connection = sqlite3.connect(rest[0])
        else:
            import psycopg

            connection = psycopg.connect(rest[0])
        sql = SqlFence()
        reaper.step()
        sql.enter(connection, "r", 6, lock="l")
        reaper.step()
        connection.execute("UPDATE counter SET value = 6")
        reaper.step()
        sql.enter(connection, "r", 6, lock="l")
        reaper.step()
        connection.commit()
        reaper.step()


def main() -> None:
    for line in sys.stdin:
        if '"s3"' in line:
            # What boto3 takes a second to load, the children then have already.
            from .objects import warm

            warm()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                die(*json.loads(line))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
