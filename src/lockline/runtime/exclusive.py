"""One at a time, with a deadline, for work that waits: what a `Section` is for work that does not."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from . import Runtime

NET: Final = 0.02
"""How long a lost wake-up can go unnoticed: an exception may strike between leaving and telling those who wait."""


class _Holder:
    """One whose turn it is; gone when nobody knows of it any more."""

    __slots__ = ("__weakref__",)


class Exclusive:
    """`async with exclusive(until) as mine`: whether it was our turn by then.

    Taken as long as its holder lives and has not left: an exception, wherever it strikes, cannot leave it taken for ever.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._alone = runtime.section()
        self._left = runtime.signal()
        self._holder: dict[str, weakref.ref[_Holder]] = {}

    @asynccontextmanager
    async def __call__(self, until: float) -> AsyncIterator[bool]:
        who = _Holder()
        mine = weakref.ref(who)
        try:
            yield await self._enter(mine, until)
        finally:
            self._leave(mine)

    async def _enter(self, mine: weakref.ref[_Holder], until: float) -> bool:
        while (there := self._holder.setdefault("holder", mine)) is not mine:
            now = self._runtime.now()
            if there() is None:
                self._leave(there)
            elif now >= until:
                return False
            else:
                self._left.clear()
                if self._holder.get("holder") is there:
                    await self._left.wait(min(until, now + NET))
        return True

    def _leave(self, there: weakref.ref[_Holder]) -> None:
        if self._holder.get("holder") is there:
            self._alone(self._clear, there)
            self._left.set()

    def _clear(self, there: weakref.ref[_Holder]) -> None:
        if self._holder.get("holder") is there:
            self._holder.pop("holder", None)
