"""Hints for tasks: a subscription to each node, brought by the loop, and a task for each that opens it again."""

from __future__ import annotations

import asyncio
from functools import partial

from ...runtime import clock
from ...runtime.looping import TaskWorker
from ..resp.subscription import AsyncioSubscription
from .channel import TROUBLE
from .connection_asyncio import ended
from .subscription import RETRY, HintSource


class AsyncioHints(HintSource):
    """Subscriptions of an asyncio client."""

    _inherited: tuple[object, ...] = ()

    def _begin(self) -> None:
        super()._begin()
        self._subscriptions: dict[int, AsyncioSubscription] = {}
        self._workers: list[TaskWorker] = []
        self._confirmed: asyncio.Event | None = None

    def forked(self) -> None:
        # Kept, because the end of a stream would be felt by the parent, which shares the selector.
        self._inherited = (*self._inherited, self._workers, self._subscriptions)
        self._begin()

    def _listened_to(self) -> list[int]:
        return list(self._subscriptions)

    def _say(self, node: int, *words: str) -> bool:
        self._subscriptions[node].say(*words)
        return True

    def _something_confirmed(self) -> None:
        if self._confirmed is not None:
            self._confirmed.set()

    async def subscribe(self, channel: str, until: float) -> None:
        """From when this returns, what is published there is heard from all that can be reached soon."""
        self._add(channel)
        if self._confirmed is None:
            self._confirmed = asyncio.Event()
        if not self._workers:
            self._unconfirmed[channel] = set(range(len(self._nodes)))
            loop = asyncio.get_running_loop()
            self._workers = [
                TaskWorker(partial(self._start, loop, node), lasting=True) for node in range(len(self._nodes))
            ]
        until = min(until, clock.now() + self._timeout)
        while self._unconfirmed.get(channel):
            self._confirmed.clear()
            try:
                async with asyncio.timeout(max(0.0, until - clock.now())):
                    await self._confirmed.wait()
            except TimeoutError:
                return

    def unsubscribe(self, channel: str) -> None:
        """One listener less; the last one ends it."""
        self._remove(channel)

    def _start(self, loop: asyncio.AbstractEventLoop, node: int) -> asyncio.Task[None]:
        return loop.create_task(self._listen(node), name=f"lockline-hints-{node}")

    async def _listen(self, node: int) -> None:
        while True:
            over = asyncio.Event()

            def end(_: Exception, over: asyncio.Event = over) -> None:
                over.set()

            subscription = AsyncioSubscription(self._nodes[node].within(self._timeout), partial(self._hear, node), end)
            try:
                await subscription.open(clock.now() + self._timeout)
                self._subscriptions[node] = subscription
                for channel in self._channels:
                    self._ask_for(node, channel)
                await over.wait()
            except TROUBLE:
                pass
            finally:
                self._subscriptions.pop(node, None)
                self._confirm(node)
                subscription.close(ConnectionAbortedError("closed"))
            await asyncio.sleep(RETRY)

    def drain(self) -> None:
        """The loop listens all the time."""

    async def close(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            await worker.join(clock.now())
        await ended(workers, clock.now() + 1.0)
