"""The body of an `async with` that somebody else may have to end."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, ClassVar


class Scope:
    """Cancels the body of an `async with`, and tells that from a cancel by others."""

    # Of the process, because the task is: blocks of several clients may lie in one another. How many of the cancels that
    # a task was asked for came from blocks that it has not left yet.
    _cancels: ClassVar[weakref.WeakKeyDictionary[asyncio.Task[Any], int]] = weakref.WeakKeyDictionary()

    def __init__(self, reason: str) -> None:
        self._reason = reason
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = self._by_others()
        self._inside = True
        self._cancelled = False

    def _by_others(self) -> int:
        return self._task.cancelling() - self._cancels.get(self._task, 0)

    def cancel(self) -> None:
        """End the body, once, if it is still there."""
        if self._inside and not self._cancelled and not self._task.done():
            self._cancelled = True
            self._cancels[self._task] = self._cancels.get(self._task, 0) + 1
            self._task.cancel(self._reason)

    async def leave(self, error: BaseException | None) -> bool:
        """Whether the error that comes out of the body is our own cancel and nobody else's."""
        self._inside = False
        if not self._cancelled:
            return False
        self._cancels[self._task] -= 1
        self._task.uncancel()
        if self._task is not asyncio.current_task():
            return False
        by_others = self._by_others() > self._before
        if not isinstance(error, asyncio.CancelledError):
            # The body ended before the cancel reached it: take it here, so that it does not hit the release.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if by_others:
                    raise
            return False
        return not by_others

    def left(self) -> None:
        """The release is done: a block around this one, whose cancel we took with ours, has its own still to come."""
        if self._cancelled and self._cancels.get(self._task) and self._task is asyncio.current_task():
            self._task.cancel(self._reason)
            self._task.uncancel()
