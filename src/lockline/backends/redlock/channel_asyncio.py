"""The fan-out of an asyncio client: one connection to each node, on which the requests of all tasks follow each other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import ClientClosed
from ...runtime import clock
from .channel import SETTLE, Fanout, TakeAnswer, connect_timeout, time_to_connect
from .commands import NodeAnswer, NodeRequest, packed
from .connection_asyncio import Awaited, ListeningTime, NodeConnection
from .rules import majority
from .target import Node


class AsyncioTalk:
    """One round of requests; its answers are queued for whoever asks next, and noted after it has ended."""

    __slots__ = ("_channel", "_due", "_least", "_missed", "_note", "_open", "_waiter", "answers")

    def __init__(self, channel: AsyncioFanout, note: TakeAnswer) -> None:
        self._channel = channel
        self._note = note
        self._open = True
        self._due = 0
        self._least = 1
        self.answers: deque[NodeAnswer] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._missed = channel.listening.missed

    def send(self, node: int, request: NodeRequest) -> None:
        self.send_all(request, (node,))

    def send_all(self, request: NodeRequest, nodes: Sequence[int] | None = None) -> None:
        channel = self._channel
        data = packed(request, channel.cluster)
        channel.listening.beat()
        awaited, now = Awaited(self, request, channel.listening.now()), clock.now()
        connections = channel.connections
        for one in connections if nodes is None else [connections[node] for node in nodes]:
            self._due += 1
            one.send(awaited, data, now)

    def follows(self, node: int, attempt: str, sent: float) -> bool:
        # There is one connection to a node at a time: if it was there then, the acquire went over it.
        one = self._channel.connections[node]
        return one.up and one.since <= sent

    def take(self, answer: NodeAnswer) -> None:
        """An answer, or the news that there will be none."""
        self._due -= 1
        if not self._open:
            self._note(answer)
            return
        self.answers.append(answer)
        waiter = self._waiter
        if waiter is not None and (len(self.answers) >= self._least or not self._due) and not waiter.done():
            waiter.set_result(None)

    @property
    def open(self) -> bool:
        return self._open

    async def wait(self, until: float, least: int = 1) -> bool:
        listening = self._channel.listening
        answers = self.answers
        self._least = least
        while len(answers) < least and self._due:
            # What a busy loop could not hear in time was not late: the time that it missed is added.
            left = until + listening.missed - self._missed - clock.now()
            if left <= 0:
                break
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(min(left, 60.0), _settle, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return bool(answers)

    async def next(self, until: float) -> NodeAnswer | None:
        return self.answers.popleft() if self.answers or await self.wait(until) else None

    def part(self) -> None:
        self._open = False
        while self.answers:
            self._note(self.answers.popleft())


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class AsyncioFanout(Fanout):
    """One event loop."""

    def __init__(self, nodes: Sequence[Node], node_timeout: float) -> None:
        super().__init__([node.label for node in nodes], node_timeout)
        self.nodes = nodes
        self.connect_timeout = connect_timeout(node_timeout)
        self.connections: list[NodeConnection] = []
        self.came: Callable[[NodeConnection], None] = lambda one: None
        """Told of each new connection, before anything is asked over it."""
        self.heard: Callable[[int, Any], None] = lambda node, message: None
        """Told of what a node said unasked. Whoever wants to know sets both."""
        self.listening = ListeningTime(self._look)
        self._inherited: list[list[NodeConnection]] = []
        self._waiters: set[asyncio.Future[None]] = set()

    def forked(self) -> None:
        """In a child: the parent's loop and sockets are left alone."""
        # Kept, because their end would be felt by the parent: a stream that is garbage takes itself out of the selector, which
        # both processes share.
        self._inherited.append(self.connections)
        self.connections = []
        self.listening = ListeningTime(self._look)

    def _look(self, now: float) -> bool:
        due = [one.look(now) for one in self.connections]
        return any(due)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def hurry(self) -> None:
        for one in self.connections:
            if not one.up:
                one.hurry()

    def changed(self) -> None:
        """A node came or went: wake who waits for a majority."""
        for waiter in self._waiters:
            _settle(waiter)

    async def talk(self, note: TakeAnswer, until: float, *, kept: bool = False) -> AsyncioTalk:
        if self.closed:
            raise ClientClosed()
        needed = majority(len(self.labels))
        if not self.connections:
            self.connections = [NodeConnection(self, node) for node in range(len(self.labels))]
        if self.membership.cluster is None or sum(one.up for one in self.connections) < needed:
            await self._connect(until, needed)
            if self.membership.cluster is None:
                raise self.membership.error()
        return self.begin(note)

    def begin(self, note: TakeAnswer) -> AsyncioTalk:
        """A conversation with whoever is connected now."""
        return AsyncioTalk(self, note)

    async def _connect(self, until: float, needed: int) -> None:
        lively = sum(not one.silent for one in self.connections)
        until = time_to_connect(clock.now(), until, self.node_timeout, lively, len(self.connections))
        for one in self.connections:
            if self.membership.cluster is None and one.up:
                # What the server said when it was greeted may be out of date: greet it again.
                one.greet_again()
        self.hurry()
        settled = float("inf")
        while True:
            up = sum(one.up for one in self.connections)
            now = clock.now()
            tried = all(one.up or one.attempted.is_set() for one in self.connections)
            if tried or now >= min(until, settled):
                return
            if up >= needed and self.membership.cluster is not None:
                settled = min(settled, now + SETTLE)
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            self._waiters.add(waiter)
            timer = loop.call_later(max(0.0, min(until, settled) - now), _settle, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.discard(waiter)

    async def close(self) -> None:
        self.closed = True
        if self.connections:
            await asyncio.gather(*(one.close() for one in self.connections))
        self.listening.stop()
