"""The asyncio channel: one connection to each node for the whole client; requests are pipelined, a task per node reads the answers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import hiredis
import redis

from ...errors import ClientClosed
from ...runtime import clock
from ...runtime.looping import TaskWorker, stay_cancelled
from . import commands
from .answers import nothing
from .channel import Note
from .channel_blocking import LAST_CHANCE, SETTLE, connect_timeout, time_to_connect
from .commands import SETTINGS, TIDYING, Failure, NodeRequest, Reply, command
from .membership import LOOK_AGAIN, PREPARATION, Membership, durable, greeting
from .pulse import Pulse, ended
from .rules import majority
from .target import TROUBLE, Node

SHORTEST, LONGEST = 0.1, 2.0
"""Pauses before a server is tried again: they double."""


class AsyncioTalk:
    """One round of requests; its answers are queued for whoever asks next, and noted after it has ended."""

    __slots__ = ("_answers", "_channel", "_due", "_missed", "_note", "_open", "_waiter")

    def __init__(self, channel: AsyncioFanout, note: Note) -> None:
        self._channel = channel
        self._note = note
        self._open = True
        self._due = 0
        self._answers: deque[tuple[int, NodeRequest, Reply]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._missed = channel.pulse.missed

    def send(self, node: int, request: NodeRequest) -> None:
        self._send(node, request, hiredis.pack_command(command(request, self._channel.cluster)))

    def send_all(self, request: NodeRequest) -> None:
        data = hiredis.pack_command(command(request, self._channel.cluster))
        for node in range(len(self._channel.labels)):
            self._send(node, request, data)

    def follows(self, node: int, attempt: str, sent: float) -> bool:
        # There is one connection to a node at a time: if it was there then, the acquire went over it.
        wire = self._channel.wires[node]
        return wire.up and wire.since <= sent

    def _send(self, node: int, request: NodeRequest, data: bytes) -> None:
        self._due += 1
        self._channel.wires[node].send(request, data, self)

    def take(self, node: int, request: NodeRequest, reply: Reply) -> None:
        """An answer, or the news that there will be none."""
        self._due -= 1
        if not self._open:
            self._note(node, request, reply)
            return
        self._answers.append((node, request, reply))
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def open(self) -> bool:
        return self._open

    async def next(self, until: float) -> tuple[int, NodeRequest, Reply] | None:
        pulse = self._channel.pulse
        while not self._answers:
            # What a busy loop could not hear in time was not late: the time that it missed is added.
            left = until + pulse.missed - self._missed - clock.now()
            if not self._due or left <= 0:
                return None
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = loop.call_later(min(left, 60.0), _settle, self._waiter)
            try:
                await self._waiter
            finally:
                timer.cancel()
                self._waiter = None
        return self._answers.popleft()

    def part(self) -> None:
        self._open = False
        while self._answers:
            self._note(*self._answers.popleft())


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class NodeConnection:
    """The connection to one node: opened, kept and opened again by its own task."""

    def __init__(self, channel: AsyncioFanout, node: int) -> None:
        self._channel = channel
        self.node = node
        self.up = False
        self.since = 0.0
        """When the connection was made."""
        self.silent = False
        """Whether the node was last seen not to answer, or not to be there."""
        self.problem = "no connection yet"
        self.attempted = asyncio.Event()
        self._connection: Any = None
        self._writer: Any = None
        self._due: deque[tuple[AsyncioTalk | None, NodeRequest, float]] = deque()
        self._debts: dict[str, tuple[NodeRequest, float]] = {}
        self._repeats: asyncio.TimerHandle | None = None
        self._overdue = False
        self._looked = 0.0
        """When the server's settings were last asked for."""
        self._pause = SHORTEST
        self._backoff = SHORTEST
        self._hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._worker = TaskWorker(lambda: loop.create_task(self._live(), name=f"lockline-redlock-{node}"), lasting=True)

    def send(self, request: NodeRequest, data: bytes, talk: AsyncioTalk | None) -> None:
        if not self.up:
            self._owe(request)
            if talk is not None:
                talk.take(self.node, request, Failure("unreachable", self.problem))
            return
        pulse = self._channel.pulse
        now = clock.now()
        if now > self._looked + LOOK_AGAIN:
            self._looked = now
            self._due.append((None, SETTINGS, pulse.now()))
            self._writer.write(hiredis.pack_command(SETTINGS.args))
        self._due.append((talk, request, pulse.now()))
        pulse.beat()
        # No drain: a node that does not read is given up after its timeout, long before much has piled up.
        self._writer.write(data)

    def look(self, now: float) -> bool:
        """Give the node up if it has been silent for too long, by the time in which this loop listened. Whether anything is due."""
        if self.up and self._due and now - self._due[0][2] > self._channel.node_timeout:
            # At the second look: its answer may lie there already, still to be read.
            if self._overdue:
                self._lose(Failure("timed out", f"no answer for {self._channel.node_timeout:.2f} s"))
            self._overdue = True
        else:
            self._overdue = False
        return self.up and bool(self._due)

    async def _live(self) -> None:
        while not self._channel.closed:
            try:
                await stay_cancelled(self._open())
                self._backoff = SHORTEST
                self._announce()
                await self._read()
                self._announce()
                continue
            except Exception as problem:
                # Whatever it is, also an answer that makes no sense: this server is of no use now.
                self.silent = True
                self.problem = f"unreachable: {problem}"
                self._channel.membership.failed(self.node, self.problem)
                await self._close_connection()
            self._announce()
            self._hurry.clear()
            try:
                async with asyncio.timeout(self._backoff):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            self._backoff = min(LONGEST, self._backoff * 2)

    def _announce(self) -> None:
        self.attempted.set()
        self._channel.changed()

    def greet_again(self) -> None:
        """Make a new connection."""
        self._lose(Failure("error", "being connected anew"))

    def hurry(self) -> None:
        """Somebody needs this node now: do not wait out the pause before the next try."""
        self.attempted.clear()
        self._hurry.set()

    async def _open(self) -> None:
        connection = self._connection = self._channel.nodes[self.node].connection(self._channel.connect_timeout)
        await connection.connect()
        await connection.send_packed_command(connection.pack_commands(PREPARATION), check_health=False)
        settings, *_ = [await _answer(connection) for _ in PREPARATION]
        greet = NodeRequest("greet", (durable(settings),))
        said = greeting(await _ask(connection, *command(greet, "", whole=True)))
        self._channel.membership.met(self.node, said)
        for attempt, (request, until) in list(self._debts.items()):
            if self._channel.membership.cluster is None:
                break
            if clock.now() < until:
                try:
                    await _ask(connection, *command(commands.again(request), self._channel.cluster))
                except redis.ResponseError:
                    self._repeat_soon()
                    continue
            self._debts.pop(attempt, None)
        # The library made, authenticated and encrypted it; from here on only bytes go over it.
        self._writer = connection._writer
        self.since = self._looked = clock.now()
        self.silent = False
        self.up = True

    async def _read(self) -> None:
        reader, stream = hiredis.Reader(), self._connection._reader
        failure = Failure("error", "the server closed the connection")
        try:
            while self.up and (data := await stream.read(65536)):
                self._overdue = False
                reader.feed(data)
                while self.up and (reply := reader.gets()) is not False:
                    self._take(reply)
        except OSError as problem:
            failure = Failure("error", f"the connection broke: {problem}")
        finally:
            self._lose(failure)
            await self._close_connection()

    def _take(self, reply: Any) -> None:
        if not self._due:
            return
        talk, request, _ = self._due.popleft()
        if isinstance(reply, hiredis.ReplyError):
            text = str(reply)
            if text.startswith("NOSCRIPT") and (request.op in TIDYING or self._still_wanted(talk, request)):
                self._due.append((talk, request, self._channel.pulse.now()))
                self._writer.write(hiredis.pack_command(command(request, self._channel.cluster, whole=True)))
                return
            reply = Failure("refused", text)
            if request.op == "release":
                self._owe(request)
                self._repeat_soon()
        if request is SETTINGS and talk is None:
            # Its record has to be as true as its settings.
            vouch = NodeRequest("vouch", (durable(reply),))
            self._due.append((None, vouch, self._channel.pulse.now()))
            self._writer.write(hiredis.pack_command(command(vouch, self._channel.cluster, whole=True)))
        elif talk is None and request.op == "release" and not isinstance(reply, Failure):
            self._debts.pop(request.args[1], None)
            if not self._debts:
                self._pause = SHORTEST
        if talk is not None:
            talk.take(self.node, request, reply)

    def _still_wanted(self, talk: AsyncioTalk | None, request: NodeRequest) -> bool:
        if talk is None or not talk.open:
            return False
        # An acquire that is sent again would come after its own release.
        return request.op != "acquire" or not any(
            later.op == "release" and later.args[1] == request.args[1] for _, later, _ in self._due
        )

    def _repeat_soon(self) -> None:
        """The server refuses for now (no memory, no replicas): ask again over this connection."""
        if self._repeats is None:
            self._repeats = asyncio.get_running_loop().call_later(self._pause, self._repeat)
            self._pause = min(LONGEST, self._pause * 2)

    def _repeat(self) -> None:
        self._repeats = None
        for attempt, (request, until) in list(self._debts.items()):
            if clock.now() >= until:
                self._debts.pop(attempt, None)
            elif self.up:
                again = commands.again(request)
                self.send(again, hiredis.pack_command(command(again, self._channel.cluster)), None)

    def _owe(self, request: NodeRequest) -> None:
        if request.op == "release" and self._channel.membership.cluster is not None and len(self._debts) < 10_000:
            longest = min(self._channel.membership.longest, 3600.0)
            self._debts.setdefault(request.args[1], (request, clock.now() + longest))

    def _lose(self, failure: Failure) -> None:
        if not self.up:
            return
        self.up = False
        self.silent = failure.kind == "timed out"
        self.problem = f"{failure.kind}: {failure.text}"
        due, self._due = self._due, deque()
        for talk, request, _ in due:
            self._owe(request)
            if talk is not None:
                talk.take(self.node, request, failure)
        # Wakes the reader, which then opens a new connection.
        if self._writer is not None:
            self._writer.close()

    async def _close_connection(self) -> None:
        connection, self._connection, self._writer = self._connection, None, None
        if connection is not None:
            try:
                await connection.disconnect(nowait=True)
            except TROUBLE:
                pass

    async def close(self) -> None:
        # A release repeated over another connection may have to leave a tombstone: better to hear of the first one.
        if self._due:
            last = AsyncioTalk(self._channel, nothing)
            last.send(self.node, NodeRequest("raw", ("PING",)))
            await last.next(clock.now() + min(self._channel.node_timeout, LAST_CHANCE))
        self._lose(Failure("error", "closed"))
        if self._repeats is not None:
            self._repeats.cancel()
        until = clock.now() + 1.0
        await self._worker.join(clock.now())
        await ended([self._worker], until)
        if self._debts:
            # What could not be delivered yet gets a last chance; after that only its ttl ends it.
            try:
                async with asyncio.timeout(LAST_CHANCE):
                    await self._open()
            except (TimeoutError, *TROUBLE):
                pass
        self.up = False
        await self._close_connection()


class AsyncioFanout:
    """One event loop."""

    now = staticmethod(clock.now)

    def __init__(self, nodes: Sequence[Node], node_timeout: float) -> None:
        self.nodes = nodes
        self.labels = [node.label for node in nodes]
        self.node_timeout = node_timeout
        self.connect_timeout = connect_timeout(node_timeout)
        self.membership = Membership(self.labels)
        self.wires: list[NodeConnection] = []
        self.closed = False
        self.pulse = Pulse(self._look)
        self._inherited: list[list[NodeConnection]] = []
        self._waiters: set[asyncio.Future[None]] = set()

    def forked(self) -> None:
        """In a child: the parent's loop and sockets are left alone."""
        # Kept, because their end would be felt by the parent: a stream that is garbage takes itself out of the selector, which
        # both processes share.
        self._inherited.append(self.wires)
        self.wires = []
        self.pulse = Pulse(self._look)

    def _look(self, now: float) -> bool:
        due = [wire.look(now) for wire in self.wires]
        return any(due)

    @property
    def cluster(self) -> str:
        return self.membership.cluster or ""

    def wall(self) -> int:
        return time.time_ns() // 1000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def patience(self, ttl: float) -> float:
        return min(self.node_timeout, ttl / 5)

    def changed(self) -> None:
        """A node came or went: wake who waits for a majority."""
        for waiter in self._waiters:
            _settle(waiter)

    async def talk(self, note: Note, until: float, *, kept: bool = False) -> AsyncioTalk:
        if self.closed:
            raise ClientClosed()
        needed = majority(len(self.labels))
        if not self.wires:
            self.wires = [NodeConnection(self, node) for node in range(len(self.labels))]
        if self.membership.cluster is None or sum(wire.up for wire in self.wires) < needed:
            await self._connect(until, needed)
            if self.membership.cluster is None:
                raise self.membership.error()
        return AsyncioTalk(self, note)

    async def _connect(self, until: float, needed: int) -> None:
        lively = sum(not wire.silent for wire in self.wires)
        until = time_to_connect(clock.now(), until, self.node_timeout, lively, len(self.wires))
        for wire in self.wires:
            if self.membership.cluster is None and wire.up:
                # What the server said when it was greeted may be out of date: greet it again.
                wire.greet_again()
            if not wire.up:
                wire.hurry()
        settled = float("inf")
        while True:
            up = sum(wire.up for wire in self.wires)
            now = clock.now()
            tried = all(wire.up or wire.attempted.is_set() for wire in self.wires)
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
        if self.wires:
            await asyncio.gather(*(wire.close() for wire in self.wires))
        self.pulse.stop()


async def _ask(connection: Any, *words: Any) -> Any:
    await connection.send_command(*words, check_health=False)
    return await connection.read_response(disable_decoding=True)


async def _answer(connection: Any) -> Any:
    try:
        return await connection.read_response(disable_decoding=True)
    except redis.ResponseError as refused:
        return refused
