"""One at a time through a door, on either runtime, with a deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from ...core import clock
from ...core.runtime import Runtime

Gate = Callable[[float], AbstractAsyncContextManager[bool]]
"""`async with gate(until) as free`: whether it was our turn by then."""


def gate_for(runtime: Runtime) -> Gate:
    """A closed shop for one client."""
    if runtime.flavour == "blocking":
        return _thread_gate(threading.Lock())
    return _task_gate(asyncio.Lock())


def _thread_gate(lock: threading.Lock) -> Gate:
    @asynccontextmanager
    async def gate(until: float) -> AsyncIterator[bool]:
        free = lock.acquire(timeout=max(0.0, until - clock.now()))
        try:
            yield free
        finally:
            if free:
                lock.release()

    return gate


def _task_gate(lock: asyncio.Lock) -> Gate:
    @asynccontextmanager
    async def gate(until: float) -> AsyncIterator[bool]:
        try:
            async with asyncio.timeout(max(0.0, until - clock.now())):
                await lock.acquire()
        except TimeoutError:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    return gate
