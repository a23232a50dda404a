"""Hints by publish: any node tells that a lease ended there, or that one was evicted. A hint only shortens a wait.

A release is heard from every node; waiters are woken once, when enough nodes have told of it that an attempt can succeed.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import hiredis

from ...runtime import clock
from ...runtime.looping import TaskWorker, stay_cancelled
from .pulse import ended
from .rules import majority
from .scripts import FREED, VICTIM
from .target import TROUBLE, Node

REMEMBERED = 256
RETRY = 1.0


Told = Callable[[str], None]


class HeardReleases:
    """Which releases have been heard of, and from how many nodes."""

    def __init__(self, nodes: int, freed: Told, victim: Told) -> None:
        self._needed = majority(nodes)
        self._freed = freed
        self._victim = victim
        self._heard: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    def hear(self, message: Any, ears: int) -> str | None:
        """Take one push; the channel, if it confirms a subscription."""
        if not isinstance(message, list) or len(message) != 3:
            return None
        kind, channel, payload = message[0], message[1].decode(), message[2]
        if kind == b"subscribe":
            return str(channel)
        if kind != b"message":
            return None
        if channel.startswith(VICTIM):
            self._victim(payload.decode())
            return None
        key = (channel, payload)
        count = self._heard[key] = self._heard.get(key, 0) + 1
        if len(self._heard) > REMEMBERED:
            self._heard.popitem(last=False)
        # With fewer nodes in earshot than a majority, the first word has to do.
        if count == min(self._needed, max(1, ears)):
            self._freed(channel[len(FREED) :])
        return None


class AsyncioHints:
    """Subscriptions of an asyncio client: a task per node listens."""

    def __init__(self, nodes: Sequence[Node], timeout: float, freed: Told, victim: Told) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self._tally = HeardReleases(len(nodes), freed, victim)
        self._workers: list[TaskWorker] = []
        self._inherited: list[list[TaskWorker]] = []
        self.forked()

    def forked(self) -> None:
        # Kept, because the end of a stream would be felt by the parent, which shares the selector.
        self._inherited.append(self._workers)
        self._channels: dict[str, int] = {}
        self._waits_for: dict[str, set[int]] = {}
        self._writers: dict[int, Any] = {}
        self._workers = []
        self._change: asyncio.Event | None = None

    @property
    def listening(self) -> bool:
        return bool(self._channels)

    async def subscribe(self, channel: str, until: float) -> None:
        self._channels[channel] = self._channels.get(channel, 0) + 1
        if self._change is None:
            self._change = asyncio.Event()
        if not self._workers:
            self._waits_for[channel] = set(range(len(self._nodes)))
            loop = asyncio.get_running_loop()
            self._workers = [
                TaskWorker(partial(self._begin, loop, node), lasting=True) for node in range(len(self._nodes))
            ]
        elif self._channels[channel] == 1:
            self._waits_for[channel] = set()
            for node in list(self._writers):
                self._say(node, "SUBSCRIBE", channel)
        until = min(until, clock.now() + self._timeout)
        while self._waits_for.get(channel):
            self._change.clear()
            try:
                async with asyncio.timeout(max(0.0, until - clock.now())):
                    await self._change.wait()
            except TimeoutError:
                return

    def _begin(self, loop: asyncio.AbstractEventLoop, node: int) -> asyncio.Task[None]:
        return loop.create_task(self._listen(node), name=f"lockline-hints-{node}")

    def unsubscribe(self, channel: str) -> None:
        left = self._channels.get(channel, 0) - 1
        if left > 0:
            self._channels[channel] = left
        elif left == 0:
            del self._channels[channel]
            self._waits_for.pop(channel, None)
            for node in list(self._writers):
                self._say(node, "UNSUBSCRIBE", channel)

    def _say(self, node: int, *words: str) -> None:
        self._writers[node].write(hiredis.pack_command(words))  # type: ignore[arg-type]
        if words[0] == "SUBSCRIBE":
            self._waits_for.setdefault(words[1], set()).add(node)

    def _confirmed(self, node: int, channel: str | None = None) -> None:
        for name, waiting in self._waits_for.items():
            if channel is None or name == channel:
                waiting.discard(node)
        assert self._change is not None
        self._change.set()

    async def _listen(self, node: int) -> None:
        while True:
            connection = self._nodes[node].connection(self._timeout)
            try:
                await stay_cancelled(connection.connect())
                reader, stream = hiredis.Reader(), connection._reader
                self._writers[node] = connection._writer
                for channel in self._channels:
                    self._say(node, "SUBSCRIBE", channel)
                while data := await stream.read(65536):
                    reader.feed(data)
                    while (message := reader.gets()) is not False:
                        if isinstance(message, hiredis.ReplyError):
                            # This user may not listen: there is nothing to wait for here.
                            self._confirmed(node)
                            continue
                        channel_confirmed = self._tally.hear(message, len(self._writers))
                        if channel_confirmed is not None:
                            self._confirmed(node, channel_confirmed)
            except TROUBLE:
                pass
            finally:
                self._writers.pop(node, None)
                self._confirmed(node)
                await connection.disconnect(nowait=True)
            await asyncio.sleep(RETRY)

    def drain(self) -> None:
        """The tasks listen all the time."""

    def wake(self) -> None:
        """Nobody is stuck in a read here."""

    async def close(self) -> None:
        workers, self._workers = self._workers, []
        for worker in workers:
            await worker.join(clock.now())
        await ended(workers, clock.now() + 1.0)
