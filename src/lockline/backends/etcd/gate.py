"""One at a time through a door, on either runtime, with a deadline."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from ...runtime import Runtime, clock
from ...runtime.section import Section

Gate = Callable[[float], AbstractAsyncContextManager[bool]]
"""`async with gate(until) as free`: whether it was our turn by then."""


LOOK = 0.002
"""How often a thread before a door looks whether it is free: it is there only while somebody connects or asks for a lease."""


def gate_for(runtime: Runtime) -> Gate:
    """A closed shop for one client."""
    if runtime.flavour == "blocking":
        return _thread_gate(_Door())
    return _task_gate(asyncio.Lock())


class _Holder:
    """One who went through the door; gone when nobody knows of it any more."""

    __slots__ = ("__weakref__",)


class _Door:
    """Shut while its holder lives and has not left: an exception cannot leave it shut for ever."""

    def __init__(self) -> None:
        self._holder: dict[str, weakref.ref[_Holder]] = {}
        self._alone = Section()

    def enter(self, who: _Holder, until: float) -> bool:
        mine = weakref.ref(who)
        while True:
            there = self._holder.setdefault("holder", mine)
            if there is mine:
                return True
            if there() is None:
                self._alone(self._clear, there)
            elif clock.now() >= until:
                return False
            else:
                time.sleep(LOOK)

    def leave(self, who: _Holder) -> None:
        there = self._holder.get("holder")
        if there is not None and there() is who:
            self._alone(self._clear, there)

    def _clear(self, there: weakref.ref[_Holder]) -> None:
        if self._holder.get("holder") is there:
            self._holder.pop("holder", None)


def _thread_gate(door: _Door) -> Gate:
    @asynccontextmanager
    async def gate(until: float) -> AsyncIterator[bool]:
        who = _Holder()
        free = door.enter(who, until)
        try:
            yield free
        finally:
            if free:
                door.leave(who)

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
