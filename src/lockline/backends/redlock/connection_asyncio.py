"""The connection of an asyncio client to one node, and the time in which its loop listens."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...runtime import clock
from ...runtime.looping import TaskWorker
from ..resp.commands import HELLO, PING, PUSHED, ServerError, flat, pack
from ..resp.connection_asyncio import AsyncioConnection, Pipeline
from ..resp.subscription import QUIET
from .answers import nothing
from .channel import LAST_CHANCE, TROUBLE, OwedReleases
from .commands import SETTINGS, TIDYING, NodeFailure, NodeRequest, packed
from .membership import LOOK_AGAIN, PREPARATION, durable, greet, greeting

if TYPE_CHECKING:
    from .channel_asyncio import AsyncioFanout, AsyncioTalk

SHORTEST, LONGEST = 0.1, 2.0
"""Pauses before a server is tried again: they double."""
FIRST = PING if PUSHED is None else HELLO
"""Asks the server to speak unasked on the connection, where that can be told apart from an answer. Old ones refuse, and stay as they are."""
SIGN_OF_LIFE = NodeRequest("raw", ("PING",))
BEAT = 0.02
"""How often it is looked after what is due, while anything is."""


class Awaited(NamedTuple):
    """A request whose answer is still to come."""

    talk: AsyncioTalk | None
    """Whose it is; None for what is asked beside every conversation."""
    request: NodeRequest
    since: float
    """By the time in which the loop listened."""


class NodeConnection:
    """The one connection of an asyncio client to a node: opened, kept and opened again by its own task."""

    def __init__(self, channel: AsyncioFanout, node: int) -> None:
        self._channel = channel
        self.node = node
        self.up = False
        self.pushes = False
        """Whether hints can come over this connection, too."""
        self.since = 0.0
        """When the connection was made."""
        self.silent = False
        """Whether the node was last seen not to answer, or not to be there."""
        self.problem = "no connection yet"
        self.attempted = asyncio.Event()
        self._connection: AsyncioConnection | None = None
        self._lost = asyncio.Event()
        self._due: deque[Awaited] = deque()
        self._owed = OwedReleases(channel.membership)
        self._repeats: asyncio.TimerHandle | None = None
        self._overdue = False
        self._looked = 0.0
        """When the server's settings were last asked for."""
        self._asked = 0.0
        """When anything was."""
        self._pause = SHORTEST
        self._backoff = SHORTEST
        self._hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._worker = TaskWorker(lambda: loop.create_task(self._live(), name=f"lockline-redlock-{node}"), lasting=True)

    def send(self, awaited: Awaited, data: bytes, now: float) -> None:
        """Send these bytes, which are that request. Whoever sends lets the loop's listening time beat first."""
        if not self.up:
            talk, request, _ = awaited
            self._owed.add(request)
            if talk is not None:
                talk.take((self.node, request, NodeFailure("unreachable", self.problem)))
            return
        if now > self._looked + LOOK_AGAIN:
            self._looked = now
            self._ask(Awaited(None, SETTINGS, awaited.since), pack(SETTINGS.args))
        self._asked = now
        self._ask(awaited, data)

    def say(self, *words: str) -> None:
        """Listen to more, or to less. It is confirmed by a push, or refused like any request."""
        awaited = Awaited(None, NodeRequest("listen", words), self._channel.listening.now())
        self._channel.listening.beat()
        self._ask(awaited, pack(words))

    def look_after(self, now: float) -> None:
        """Ask whether it still works, if nothing was asked for a while: a dead one is quiet, too."""
        if self.up and now > self._asked + QUIET:
            self._channel.listening.beat()
            self.send(Awaited(None, SIGN_OF_LIFE, self._channel.listening.now()), PING, now)

    def _ask(self, awaited: Awaited, data: bytes) -> None:
        """Send a request and expect its answer. If only one of the two was done, the connection ends: answers would shift by one."""
        assert self._connection is not None
        try:
            self._due.append(awaited)
            # No drain: a node that does not read is given up after its timeout, long before much has piled up.
            self._connection.write(data)
        except BaseException:
            self._lose(NodeFailure("error", "struck down while it was sending"))
            raise

    def look(self, now: float) -> bool:
        """Give the node up if it has been silent for too long, by the time in which this loop listened. Whether anything is due."""
        if self.up and self._due and now - self._due[0].since > self._channel.node_timeout:
            # At the second look: its answer may lie there already, still to be read.
            if self._overdue:
                self._lose(NodeFailure("timed out", f"no answer for {self._channel.node_timeout:.2f} s"))
            self._overdue = True
        else:
            self._overdue = False
        return self.up and bool(self._due)

    async def _live(self) -> None:
        while not self._channel.closed:
            if not self.up:
                try:
                    await self._open()
                except Exception as problem:
                    # Whatever it is, also an answer that makes no sense: this server is of no use now.
                    self.silent = True
                    self.problem = f"unreachable: {problem}"
                    self._channel.membership.failed(self.node, self.problem)
                    self._announce()
                    await self._wait_to_try_again()
                    continue
                self._backoff = SHORTEST
                self._channel.came(self)
                self._announce()
            await self._lost.wait()
            self._announce()

    async def _wait_to_try_again(self) -> None:
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
        self._lose(NodeFailure("error", "being connected anew"))

    def hurry(self) -> None:
        """Somebody needs this node now: do not wait out the pause before the next try."""
        self.attempted.clear()
        self._hurry.set()

    async def _open(self) -> None:
        timeout = self._channel.connect_timeout
        connection = AsyncioConnection(self._channel.nodes[self.node].within(timeout))
        try:
            await connection.open(clock.now() + timeout)
            pipeline = Pipeline(connection)
            first, settings, *_ = await pipeline.ask_all((FIRST, *PREPARATION), clock.now() + timeout)
            (said,) = await pipeline.ask_all([greet(flat(settings))], clock.now() + timeout)
            self._channel.membership.met(self.node, greeting(said))
            await self._pay(pipeline)
            if connection.broken is not None:
                raise connection.broken
        except BaseException:
            connection.close(ConnectionAbortedError("not usable"))
            raise
        connection.replied, connection.ended = self._take, self._broke
        self._connection = connection
        self.pushes = isinstance(first, dict)
        self.since = self._looked = self._asked = clock.now()
        self.silent = False
        self._lost.clear()
        self.up = True
        if self._owed:
            # Refused for now, or owed only while the others were paid.
            self._repeat_soon()

    async def _pay(self, pipeline: Pipeline) -> None:
        """Repeat the releases that have to arrive, before anything else goes over the new connection."""
        for request in self._owed.due():
            data = packed(request, self._channel.cluster)
            (said,) = await pipeline.ask_all([data], clock.now() + self._channel.connect_timeout)
            if not isinstance(said, ServerError):
                self._owed.settle(request)

    def _broke(self, why: Exception) -> None:
        self._lose(NodeFailure("error", f"the connection broke: {why}"))

    def _take(self, reply: Any) -> None:
        self._overdue = False
        if type(reply) is PUSHED:
            self._take_push(reply)
            return
        if not self._due:
            self._lose(NodeFailure("error", "an answer that nobody asked for"))
            return
        talk, request, _ = self._due.popleft()
        if talk is not None and type(reply) is list:
            # Nearly all of them.
            talk.take((self.node, request, reply))
            return
        if isinstance(reply, ServerError):
            text = str(reply)
            if text.startswith("NOSCRIPT") and (request.op in TIDYING or self._still_wanted(talk, request)):
                again = Awaited(talk, request, self._channel.listening.now())
                self._ask(again, packed(request, self._channel.cluster, whole=True))
                return
            reply = NodeFailure("refused", text)
            if request.op == "release":
                self._owed.add(request)
                self._repeat_soon()
        elif type(reply) is dict:
            reply = flat(reply)
        if request is SETTINGS and talk is None:
            # Its record has to be as true as its settings.
            vouch = NodeRequest("vouch", (durable(reply),))
            self._ask(
                Awaited(None, vouch, self._channel.listening.now()), packed(vouch, self._channel.cluster, whole=True)
            )
        elif talk is None and request.op == "release" and not isinstance(reply, NodeFailure):
            self._owed.settle(request)
            if not self._owed:
                self._pause = SHORTEST
        if talk is not None:
            talk.take((self.node, request, reply))

    def _take_push(self, message: list[Any]) -> None:
        if message[0] in (b"subscribe", b"unsubscribe"):
            # The server's answer to what was asked first.
            if not self._due or self._due[0].request.op != "listen":
                self._lose(NodeFailure("error", "a confirmation that nobody asked for"))
                return
            self._due.popleft()
        self._channel.heard(self.node, message)

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
        listening = self._channel.listening
        for request in self._owed.due() if self.up else ():
            listening.beat()
            self.send(
                Awaited(None, request, listening.now()), packed(request, self._channel.cluster), self._channel.now()
            )

    def _lose(self, failure: NodeFailure) -> None:
        if not self.up:
            return
        self.up = False
        self.silent = failure.kind == "timed out"
        self.problem = f"{failure.kind}: {failure.text}"
        due, self._due = self._due, deque()
        for talk, request, _ in due:
            self._owed.add(request)
            if talk is not None:
                talk.take((self.node, request, failure))
        # Wakes the task that then opens a new one.
        self._lost.set()
        if self._connection is not None:
            self._connection.close(ConnectionAbortedError(failure.text))

    async def close(self) -> None:
        # A release repeated over another connection may have to leave a tombstone: better to hear of the first one.
        if self._due:
            last = self._channel.begin(nothing)
            last.send(self.node, SIGN_OF_LIFE)
            await last.next(clock.now() + min(self._channel.node_timeout, LAST_CHANCE))
        self._lose(NodeFailure("error", "closed"))
        if self._repeats is not None:
            self._repeats.cancel()
        until = clock.now() + 1.0
        await self._worker.join(clock.now())
        await wait_for_ends([self._worker], until)
        if self._owed:
            # What could not be delivered yet gets a last chance; after that only its ttl ends it.
            try:
                async with asyncio.timeout(LAST_CHANCE):
                    await self._open()
            except TROUBLE:
                pass
        self.up = False
        if self._connection is not None:
            self._connection.close(ConnectionAbortedError("closed"))


class ListeningTime:
    """The time in which a loop listens: what it misses, because it is busy with other tasks, is no server's silence.

    A timer that comes late tells how much that was. It beats only while something is due, and is no task that somebody could cancel.
    """

    def __init__(self, look: Callable[[float], bool]) -> None:
        self._look = look
        self._planned = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.missed = 0.0

    def now(self) -> float:
        """A clock that stands still while the loop does not listen."""
        return clock.now() - self.missed

    def beat(self) -> None:
        """Something is due."""
        if self._timer is None:
            self._planned = clock.now() + BEAT
            self._timer = asyncio.get_running_loop().call_later(BEAT, self._beaten)

    def _beaten(self) -> None:
        self._timer = None
        late = clock.now() - self._planned
        if late > BEAT:
            self.missed += late
        if self._look(self.now()):
            self.beat()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


async def wait_for_ends(workers: Sequence[TaskWorker], until: float) -> None:
    """Wait for tasks that were cancelled to put their things away."""
    # A worker may be between two tasks, so there is nothing to await.
    while any(worker.alive() for worker in workers) and clock.now() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
