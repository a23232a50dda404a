"""Hints for tasks: over the connection that is asked on, where the server speaks RESP3; else over one of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from ...runtime import clock
from ...runtime.looping import TaskWorker
from ..resp.subscription import AsyncioSubscription
from .channel import TROUBLE
from .channel_asyncio import AsyncioFanout
from .connection_asyncio import NodeConnection, wait_for_ends
from .subscription import RETRY, Hearer, HintSource
from .target import Node


class AsyncioHints(HintSource):
    """Subscriptions of an asyncio client. What is asked after one, over the same connection, is done after it: nobody has to wait.

    Whoever waits asks over it now and then, and so finds out whether it still works; for whoever holds that is looked after here.
    """

    _inherited: tuple[object, ...] = ()

    def __init__(
        self, channel: AsyncioFanout, nodes: Sequence[Node], timeout: float, freed: Hearer, victim: Hearer
    ) -> None:
        self._channel = channel
        super().__init__(nodes, timeout, freed, victim)
        channel.came, channel.heard = self._came, self._hear

    def _begin(self) -> None:
        super()._begin()
        self._workers: dict[int, TaskWorker] = {}
        """For the servers that need a connection of their own."""
        self._subscriptions: dict[int, AsyncioSubscription] = {}
        self._confirmed: asyncio.Event | None = None

    def forked(self) -> None:
        # Kept, because the end of a stream would be felt by the parent, which shares the selector.
        self._inherited = (*self._inherited, self._workers, self._subscriptions)
        self._begin()

    def _listened_to(self) -> list[int]:
        shared = (one.node for one in self._channel.connections if one.up and one.pushes)
        return [*self._subscriptions, *(node for node in shared if node not in self._workers)]

    def _say(self, node: int, *words: str) -> bool:
        (self._subscriptions.get(node) or self._channel.connections[node]).say(*words)
        return True

    def _something_confirmed(self) -> None:
        if self._confirmed is not None:
            self._confirmed.set()

    async def subscribe(self, channel: str, until: float) -> None:
        """From when this returns, what is published there is heard from all that can be reached soon."""
        self._add(channel)
        for one in self._channel.connections:
            if one.up:
                self._listen_apart(one)
        if self._confirmed is None:
            self._confirmed = asyncio.Event()
        until = min(until, clock.now() + self._timeout)
        while self._unconfirmed.get(channel, set()) & self._workers.keys():
            self._confirmed.clear()
            try:
                async with asyncio.timeout(max(0.0, until - clock.now())):
                    await self._confirmed.wait()
            except TimeoutError:
                return

    def unsubscribe(self, channel: str) -> None:
        """One listener less; the last one ends it."""
        self._remove(channel)

    def _came(self, one: NodeConnection) -> None:
        """There is a new connection to this node, and nothing was asked over it."""
        self._listen_apart(one)
        if one.node not in self._workers and one.pushes:
            for channel in self._channels:
                self._ask_for(one.node, channel)

    def _listen_apart(self, one: NodeConnection) -> None:
        """Where the server does not speak unasked on the connection that it is asked on, open another."""
        if one.pushes or one.node in self._workers or not self._channels:
            return
        for waiting in self._unconfirmed.values():
            waiting.add(one.node)
        start = partial(self._start, asyncio.get_running_loop(), one.node)
        self._workers[one.node] = TaskWorker(start, lasting=True)

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
        """The loop listens all the time; but over a connection that is dead nothing comes."""
        now = clock.now()
        for one in self._channel.connections if self._channels else ():
            one.look_after(now)

    async def close(self) -> None:
        # First: a connection that comes now is not listened to.
        self._channels.clear()
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            await worker.join(clock.now())
        await wait_for_ends(list(workers.values()), clock.now() + 1.0)
