"""Parent and child of a fork, each telling what it saw; run as a process of its own by the tests of promise 9.

The forking process is a plain one: sync code in the main thread, or a coroutine on the main thread's loop.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ..calm import calm
from .parties import connect
from .scene import OUTLIVED


class Teller:
    """One flavour's client in a forking process."""

    def __init__(self, flavour: str, target: str, options: dict[str, Any]) -> None:
        self.client = connect(flavour, target, **options)
        self.loop = asyncio.new_event_loop() if flavour == "asyncio" else None

    def do(self, work: Callable[[], Any]) -> Any:
        """Run it here and now, to its end."""
        if self.loop is None:
            return work()

        async def run() -> Any:
            value = work()
            return await value if inspect.isawaitable(value) else value

        return self.loop.run_until_complete(run())

    def sleep(self, seconds: float) -> None:
        """Let time pass; in asyncio the loop has to run for anything to be renewed."""
        if self.loop is None:
            time.sleep(seconds)
        else:
            self.loop.run_until_complete(asyncio.sleep(seconds))

    def listen(self, readable: int, size: int = -1) -> str:
        """What comes out of a pipe; in asyncio the loop goes on meanwhile, or nothing would be renewed."""
        with os.fdopen(readable, "rb", buffering=0) as pipe:
            if self.loop is None:
                return pipe.read(size).decode()
            return self.loop.run_until_complete(_listen(pipe, size)).decode()

    def outcome(self, work: Callable[[], Any]) -> str:
        try:
            self.do(work)
        except Exception as error:
            return type(error).__name__
        return "ok"

    def in_child(self) -> None:
        """A forked asyncio program makes itself a new loop: the old one's selector is shared with the parent."""
        if self.loop is not None:
            self.loop = asyncio.new_event_loop()


async def _listen(pipe: io.RawIOBase, size: int) -> bytes:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    told = await reader.read(size)
    transport.close()
    return told


def forked(teller: Teller, child: Callable[[], Any]) -> tuple[int, int]:
    """Start a child that tells what it saw through a pipe."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(readable)
            teller.in_child()
            seen = child()
            with os.fdopen(writable, "w") as pipe:
                json.dump(seen, pipe)
            code = 0
        except BaseException as error:
            import traceback

            traceback.print_exception(error)
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writable)
    return pid, readable


def heard(teller: Teller, child: tuple[int, int]) -> Any:
    """What the child told, when it has ended."""
    pid, readable = child
    told = teller.listen(readable)
    _, status = os.waitpid(pid, 0)
    if status:
        raise SystemExit(f"the child ended with {status}")
    return json.loads(told)


def child_holds_nothing(t: Teller, ttl: float) -> dict[str, Any]:
    lease = t.do(t.client.lock("x", ttl=ttl).acquire)

    def child() -> dict[str, Any]:
        return {"valid": lease.valid, "release": t.outcome(lease.release)}

    seen = heard(t, forked(t, child))
    line = t.do(lambda: t.client.inspect("x"))
    parent = {"valid": lease.valid, "held in the store": [held.id for held in line.holders] == [lease.id]}
    return {"child": seen, "parent": {**parent, "release": t.outcome(lease.release)}}


def child_acquires(t: Teller, ttl: float) -> dict[str, Any]:
    lease = t.do(t.client.lock("x", ttl=60).acquire)

    def child() -> dict[str, Any]:
        began = calm()
        mine = t.do(t.client.lock("y", ttl=ttl).acquire)
        seconds = calm() - began
        t.sleep(OUTLIVED * ttl)
        return {"seconds": seconds, "valid after its ttl": mine.valid, "release": t.outcome(mine.release)}

    seen = heard(t, forked(t, child))
    return {"child": seen, "parent": {"release": t.outcome(lease.release)}}


def exclude_each_other(t: Teller, ttl: float) -> dict[str, Any]:
    lease = t.do(t.client.lock("x", ttl=ttl).acquire)
    ready, go = os.pipe()

    def child() -> dict[str, Any]:
        tried = t.do(t.client.lock("x", ttl=ttl).try_acquire)
        os.write(go, b"1")
        mine = t.do(lambda: t.client.lock("x", ttl=ttl).acquire(timeout=20))
        token = mine.token
        t.do(mine.release)
        return {"try while the parent holds": tried and tried.token, "token": token}

    running = forked(t, child)
    t.listen(ready, 1)
    t.do(lease.release)
    return {"child": heard(t, running), "parent": {"token": lease.token}}


def busy_parent(t: Teller, ttl: float) -> dict[str, Any]:
    lease = t.do(t.client.lock("x", ttl=ttl).acquire)
    got: list[int] = []
    if t.loop is None:

        def wait() -> None:
            with t.client.lock("x", ttl=ttl) as mine:
                got.append(mine.token)

        waiter = threading.Thread(target=wait)
        waiter.start()
    else:

        async def wait_too() -> None:
            async with t.client.lock("x", ttl=ttl) as mine:
                got.append(mine.token)

        task = t.loop.create_task(wait_too())
    # Long enough for a renewal of both.
    t.sleep(ttl * 0.6)

    def child() -> dict[str, Any]:
        tokens = []
        for _ in range(5):
            mine = t.do(t.client.lock("y", ttl=ttl).acquire)
            tokens.append(mine.token)
            t.do(mine.release)
        return {"tokens": tokens}

    seen = heard(t, forked(t, child))
    t.do(lease.release)
    if t.loop is None:
        waiter.join(30)
    else:
        t.loop.run_until_complete(asyncio.wait_for(task, 30))
    return {"child": seen, "parent": {"waiter got it": len(got) == 1}}


def child_exits_cleanly(t: Teller, ttl: float) -> dict[str, Any]:
    lease = t.do(t.client.lock("x", ttl=ttl).acquire)

    def child() -> dict[str, Any]:
        t.do(t.client.lock("y", ttl=ttl).acquire)
        t.do(t.client.close)
        return {}

    heard(t, forked(t, child))
    t.sleep(OUTLIVED * ttl)
    valid = lease.valid
    other = t.do(t.client.lock("z", ttl=ttl).try_acquire)
    t.do(other.release)
    parent = {"valid after its ttl": valid, "another name works": True, "release": t.outcome(lease.release)}
    return {"parent": parent}


def main() -> None:
    flavour, target, options, story, ttl = sys.argv[1:]
    teller = Teller(flavour, target, json.loads(options))
    seen = globals()[story](teller, float(ttl))
    teller.do(teller.client.close)
    if teller.loop is not None:
        teller.loop.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
