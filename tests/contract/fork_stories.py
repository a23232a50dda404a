"""Parent and child of a fork, each telling what it saw; told by the tests of promise 9 in a process of its own.

The forking process is a plain one: sync code in the main thread, or a coroutine on the main thread's loop.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import os
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from lockline.runtime.clock import now

from ..renewed import hasten, renewed_since
from .parties import LONG, connect
from .scene import A_MINUTE


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

    def renewed(self, lease: Any) -> bool:
        """Whether this lease is renewed when that is due."""
        began = now()
        while not renewed_since(lease._live, began) and now() < began + A_MINUTE:
            hasten(lease)
            self.sleep(0.05)
        return bool(renewed_since(lease._live, began) and lease.valid)

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


def child_holds_nothing(t: Teller) -> dict[str, Any]:
    lease = t.do(t.client.lock("x", ttl=LONG).acquire)

    def child() -> dict[str, Any]:
        return {"valid": lease.valid, "release": t.outcome(lease.release)}

    seen = heard(t, forked(t, child))
    line = t.do(lambda: t.client.inspect("x"))
    parent = {"valid": lease.valid, "held in the store": [held.id for held in line.holders] == [lease.id]}
    return {"child": seen, "parent": {**parent, "release": t.outcome(lease.release)}}


def child_acquires(t: Teller) -> dict[str, Any]:
    lease = t.do(t.client.lock("x", ttl=LONG).acquire)

    def child() -> dict[str, Any]:
        mine = t.do(t.client.lock("y", ttl=LONG).acquire)
        return {"renewed": t.renewed(mine), "release": t.outcome(mine.release)}

    seen = heard(t, forked(t, child))
    return {"child": seen, "parent": {"release": t.outcome(lease.release)}}


def exclude_each_other(t: Teller) -> dict[str, Any]:
    lease = t.do(t.client.lock("x", ttl=LONG).acquire)
    ready, go = os.pipe()

    def child() -> dict[str, Any]:
        tried = t.do(t.client.lock("x", ttl=LONG).try_acquire)
        os.write(go, b"1")
        mine = t.do(lambda: t.client.lock("x", ttl=LONG).acquire(timeout=A_MINUTE))
        token = mine.token
        t.do(mine.release)
        return {"try while the parent holds": tried and tried.token, "token": token}

    running = forked(t, child)
    t.listen(ready, 1)
    t.do(lease.release)
    return {"child": heard(t, running), "parent": {"token": lease.token}}


def busy_parent(t: Teller) -> dict[str, Any]:
    lease = t.do(t.client.lock("x", ttl=LONG).acquire)
    got: list[int] = []
    if t.loop is None:

        def wait() -> None:
            with t.client.lock("x", ttl=LONG) as mine:
                got.append(mine.token)

        waiter = threading.Thread(target=wait)
        waiter.start()
    else:

        async def wait_too() -> None:
            async with t.client.lock("x", ttl=LONG) as mine:
                got.append(mine.token)

        task = t.loop.create_task(wait_too())
    while not t.do(lambda: t.client.inspect("x")).waiters:
        t.sleep(0.02)
    t.renewed(lease)

    def child() -> dict[str, Any]:
        tokens = []
        for _ in range(5):
            mine = t.do(t.client.lock("y", ttl=LONG).acquire)
            tokens.append(mine.token)
            t.do(mine.release)
        return {"tokens": tokens}

    seen = heard(t, forked(t, child))
    t.do(lease.release)
    if t.loop is None:
        waiter.join(A_MINUTE)
    else:
        t.loop.run_until_complete(asyncio.wait_for(task, A_MINUTE))
    return {"child": seen, "parent": {"waiter got it": len(got) == 1}}


def child_exits_cleanly(t: Teller) -> dict[str, Any]:
    lease = t.do(t.client.lock("x", ttl=LONG).acquire)

    def child() -> dict[str, Any]:
        t.do(t.client.lock("y", ttl=LONG).acquire)
        t.do(t.client.close)
        return {}

    heard(t, forked(t, child))
    renewed = t.renewed(lease)
    other = t.do(t.client.lock("z", ttl=LONG).try_acquire)
    t.do(other.release)
    parent = {"renewed": renewed, "another name works": True, "release": t.outcome(lease.release)}
    return {"parent": parent}


def tell(flavour: str, target: str, options: dict[str, Any], story: str, line: socket.socket) -> None:
    """Tell this story, to whoever listens at the other end of the line; an error as what it is."""
    warnings.simplefilter("ignore", DeprecationWarning)  # to fork beside other threads is the story
    try:
        teller = Teller(flavour, target, options)
        seen = globals()[story](teller)
        teller.do(teller.client.close)
        if teller.loop is not None:
            teller.loop.close()
    except BaseException:
        seen = {"error": traceback.format_exc()}
    with line.makefile("w") as answer:
        json.dump(seen, answer)
