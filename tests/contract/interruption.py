"""Cut a call short at the step the test names: a cancel in asyncio, Ctrl-C in a thread.

A step is a moment before or after a call to the backend: before it was applied, and after it was applied but before
anybody heard of it. `Steps(bob, at={3})` cuts at the third step that Bob himself takes (the keeper's are its own).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Generator
from typing import Any

from .faults import CALLS
from .parties import Party

CUT = (KeyboardInterrupt, asyncio.CancelledError)
"""What comes out of a call that was cut short."""


class Steps:
    """Stands between a party's engine and its backend, and cuts at the numbered steps."""

    def __init__(self, party: Party, at: set[int]) -> None:
        engine = party.client.real._engine
        self._engine = engine
        self._inner = engine.backend
        self._at = at
        self._me = party.me
        self._asyncio = party.flavour == "asyncio"
        self.taken = 0
        engine.backend = engine._keeper._backend = self

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """That of the backend: since Python 3.12 `isinstance` asks a protocol's members of the class, not by `__getattr__`."""
        return self._inner.__class__

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name not in CALLS:
            return value

        async def call(*args: Any, **options: Any) -> Any:
            if (asyncio.current_task() if self._asyncio else threading.current_thread()) is not self._me:
                return await value(*args, **options)
            await self._step()
            answer = await value(*args, **options)
            await self._step()
            return answer

        return call

    async def _step(self) -> None:
        self.taken += 1
        if self.taken not in self._at:
            if self._asyncio:
                await asyncio.sleep(0)
            return
        if not self._asyncio:
            raise KeyboardInterrupt
        self._me.cancel()
        await asyncio.sleep(0)

    @property
    def hit(self) -> bool:
        """Whether it came as far as the first cut."""
        return self.taken >= min(self._at)

    def remove(self) -> None:
        """Stand between them no longer."""
        self._engine.backend = self._engine._keeper._backend = self._inner


class CancelAt:
    """Awaits a coroutine and cancels the task the nth time that it really suspends."""

    def __init__(self, coroutine: Awaitable[Any], nth: int) -> None:
        self._coroutine = coroutine
        self._nth = nth
        self.hit = False

    def __await__(self) -> Generator[Any, None, Any]:
        steps = self._coroutine.__await__()
        count = 0
        thrown: BaseException | None = None
        while True:
            try:
                awaited = next(steps) if thrown is None else steps.throw(thrown)
            except StopIteration as done:
                return done.value
            count += 1
            if count == self._nth:
                self.hit = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            thrown = None
            try:
                yield awaited
            except BaseException as error:
                thrown = error
