"""Blocking work awaited from a loop, so that a cancel never leaves it running behind the caller's back."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_the_end(
    work: Callable[[], T], undo: Callable[[T], object] | None = None, threads: Executor | None = None
) -> T:
    """The result of the work, done in a thread. If cancelled meanwhile, the cancel goes on once the work has ended,
    and was undone where it can be.

    A thread cannot be stopped. Whoever is told "cancelled" may let the lock go, and then nothing may still be writing.
    """
    loop = asyncio.get_running_loop()
    task: asyncio.Future[T] = loop.run_in_executor(threads, contextvars.copy_context().run, work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as cancel:
            cancelled = cancel
    if cancelled is not None:
        if task.exception() is None and undo is not None:
            undo(task.result())
        raise cancelled
    return task.result()


def awaited(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The method, awaited: of an object that has the one whose method it is as its `_blocking`."""

    @functools.wraps(method)
    async def wrapper(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await to_the_end(lambda: method(self._blocking, *args, **kwargs))

    return wrapper
