"""An asyncio runtime on a loop of its own, in a thread of its own: what runs there goes on while the caller's loop is blocked."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

from ..errors import ConfigError
from .looping import LoopRuntime

T = TypeVar("T")

_caller: ContextVar[asyncio.Task[Any] | None] = ContextVar("lockline_caller", default=None)
"""The task of the caller's own loop that something is done for."""


class ApartRuntime(LoopRuntime):
    """Two loops: the caller's, which awaits and is told, and one apart, where everything is done."""

    def __init__(self) -> None:
        super().__init__()
        self._apart: asyncio.AbstractEventLoop | None = None
        self._callers: asyncio.AbstractEventLoop | None = None
        self._ended = False

    def forked(self) -> None:
        """In a child neither loop nor thread is there."""
        super().forked()
        self._apart = self._callers = None

    def me(self) -> object:
        return _caller.get() or super().me()

    def here(self, callback: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(callback)
        def call(*news: Any) -> None:
            callers = self._callers
            if callers is None or callers.is_closed():
                return
            if asyncio._get_running_loop() is callers:
                callback(*news)
            else:
                callers.call_soon_threadsafe(callback, *news)

        return call

    def call_aside(self, callback: Callable[[], object]) -> None:
        self.here(callback)()

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What the coroutine gives, run apart; a cancel of the caller's is carried over, and its end is waited for."""
        callers = asyncio.get_running_loop()
        if callers is self._apart or self._ended:
            return await make()
        if self._callers is None:
            self._callers = callers
        elif self._callers is not callers:
            raise ConfigError("this asyncio client was first used on another event loop; connect one client per loop")
        apart = self._apart or self._start()
        over: asyncio.Future[T] = callers.create_future()
        begun: list[asyncio.Task[T]] = []
        me = asyncio.current_task()

        def begin() -> None:
            _caller.set(me)
            task = apart.create_task(make())
            begun.append(task)
            task.add_done_callback(hand_over)

        def hand_over(task: asyncio.Task[T]) -> None:
            if not callers.is_closed():
                callers.call_soon_threadsafe(_settle, over, task)

        apart.call_soon_threadsafe(begin)
        try:
            return await asyncio.shield(over)
        except asyncio.CancelledError:
            # What may have been applied is withdrawn over there, which has a deadline of its own.
            apart.call_soon_threadsafe(lambda: begun[0].cancel())
            await asyncio.wait([over])
            if not over.cancelled():
                over.exception()
            raise

    def _start(self) -> asyncio.AbstractEventLoop:
        self._apart = apart = asyncio.new_event_loop()
        threading.Thread(target=_serve, args=(apart,), name="lockline-apart", daemon=True).start()
        return apart

    def stop(self) -> None:
        """End the loop and its thread; what is asked for afterwards finds a closed client."""
        self._ended = True
        apart, self._apart = self._apart, None
        if apart is not None and not apart.is_closed():
            apart.call_soon_threadsafe(apart.stop)


def _settle(over: asyncio.Future[Any], task: asyncio.Task[Any]) -> None:
    if over.done():
        return
    if task.cancelled():
        over.cancel()
    elif (problem := task.exception()) is not None:
        over.set_exception(problem)
    else:
        over.set_result(task.result())


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.close()
