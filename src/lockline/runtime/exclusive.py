"""One at a time, with a deadline, for work that waits: what a `Section` is for work that does not."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from . import Runtime, Signal

NET: Final = 0.5
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
        self._holder: dict[str, weakref.ref[_Holder]] = {}
        self._waiting: OrderedDict[Signal, None] = OrderedDict()
        """Whom to call, one at a time and in order of arrival: all at once would only be in each other's way."""

    @asynccontextmanager
    async def __call__(self, until: float) -> AsyncIterator[bool]:
        who = _Holder()
        mine = weakref.ref(who)
        try:
            yield await self._enter(mine, until)
        finally:
            self._leave(mine)

    async def _enter(self, mine: weakref.ref[_Holder], until: float) -> bool:
        if self._holder.setdefault("holder", mine) is mine:
            return True
        signal, entered = self._runtime.signal(), False
        try:
            while (there := self._holder.setdefault("holder", mine)) is not mine:
                now = self._runtime.now()
                if there() is None:
                    self._leave(there)
                    continue
                if now >= until:
                    return False
                signal.clear()
                self._waiting[signal] = None
                # Whoever left before we stood there calls nobody.
                if self._holder.get("holder") is there:
                    await signal.wait(min(until, now + NET))
            entered = True
            return True
        finally:
            self._waiting.pop(signal, None)
            if not entered:
                self._call_next()  # we may have been called ourselves, in vain

    def _leave(self, there: weakref.ref[_Holder]) -> None:
        if self._holder.get("holder") is there:
            self._alone(self._clear, there)
            self._call_next()

    def _call_next(self) -> None:
        try:
            self._waiting.popitem(last=False)[0].set()
        except KeyError:
            pass  # nobody waits

    def _clear(self, there: weakref.ref[_Holder]) -> None:
        if self._holder.get("holder") is there:
            self._holder.pop("holder", None)
