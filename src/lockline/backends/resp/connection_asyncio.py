"""An asyncio connection, read by the loop itself: a task that reads could be cancelled by a program that cancels all it can find."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...runtime import clock
from ...runtime.looping import stay_cancelled
from ..whole_stream import WholeStream
from .commands import PUSHED, new_reader
from .errors import NOT_LET_IN, NoAnswer, failed_login
from .joining import Join, Joined, Request, apart
from .target import Server

SHORTEST_PATIENCE_S = 1.0
"""A request with less time than this does not give up the connection that it shares: the server may only be far away."""


class AsyncioConnection(WholeStream):
    """One connection of redis-py, after its login a stream of replies, each handed to `replied` as it comes.

    `ended` is told once, why, when no more will come. Whoever uses the connection sets both after `open`.
    """

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.address = server.address
        self.patience = server.patience
        self.broken: Exception | None = None
        # Until somebody wants to know.
        self.replied: Callable[[Any], None] = lambda reply: None
        self.ended: Callable[[Exception], None] = lambda why: None
        self._server = server
        self._connection: Any = None
        self._loop = asyncio.get_running_loop()
        self._login: asyncio.Timeout | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._transport: asyncio.WriteTransport | None = None
        reader = new_reader()
        self._feed, self._gets = reader.feed, reader.gets

    async def open(self, until: float) -> AsyncioConnection:
        """Connect and log in."""
        left = until - clock.now()
        if left <= 0:
            raise NoAnswer(self.address, "no time left to connect", sent=False, late=True)
        # Not before: the library takes milliseconds to make one, and in a crowd that is late already each would cost the next its time.
        connection = self._connection = self._server.connection()
        try:
            async with asyncio.timeout(left) as self._login:
                try:
                    await stay_cancelled(connection.connect())
                finally:
                    self._login = None
            if self.broken is not None:
                raise NoAnswer(self.address, self.broken, sent=False)
        except NOT_LET_IN as problem:
            await connection.disconnect(nowait=True)
            raise failed_login(problem, self.address) from problem
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._writer = connection._writer
        # The library made, authenticated and encrypted it; from here on only bytes go over it.
        self._transport = connection._writer.transport
        self._transport.set_protocol(self)
        if connection._reader.at_eof():
            self.close(ConnectionResetError("the server closed the connection"))
        return self

    def write(self, data: bytes) -> None:
        """Send it. No drain: one who does not read is given up long before much has piled up."""
        transport = self._transport
        # One that failed in this very moment is said to be lost a moment later; until then the loop logs each write.
        if self.broken is None and transport is not None and not transport.is_closing():
            transport.write(data)

    def received(self, data: bytearray) -> None:
        """Hand on each reply."""
        gets = self._gets
        try:
            self._feed(data)  # type: ignore[arg-type]  # it takes every buffer
            while self.broken is None and (reply := gets()) is not Ellipsis:
                self.replied(reply)
        except OSError as problem:
            self.close(problem)

    def struck(self) -> None:
        """Nobody knows whose answer comes next."""
        self.close(ConnectionAbortedError("struck down while it was reading"))

    def eof_received(self) -> None:
        """No reply will come any more."""
        self.close(ConnectionResetError("the server closed the connection"))

    def connection_lost(self, problem: Exception | None) -> None:
        """Nor now."""
        self.close(problem or ConnectionResetError("the connection was closed"))

    def close(self, why: Exception) -> None:
        """End it, also one that is being opened."""
        if self.broken is not None:
            return
        self.broken = why
        if self._writer is None:
            if self._login is not None and not self._login.expired():
                self._login.reschedule(self._loop.time())
            return
        self._writer.close()
        self._connection._writer = self._connection._reader = None
        self.ended(why)


Asked = tuple[Request, asyncio.Future[Any], float, float]
"""One request that travels as a part of another, who waits for its answer, until when, and when its connection is given up."""


class FutureOfMany:
    """Those who have asked together wait for one answer; to the pipeline one who waits, like another."""

    __slots__ = ("_joined", "_pipeline", "asked")

    def __init__(self, joined: Joined, asked: list[Asked], pipeline: Pipeline) -> None:
        self.asked = asked
        self._joined = joined
        self._pipeline = pipeline

    def done(self) -> bool:
        """Whoever of them is gone: the others want their answers."""
        return False

    def set_result(self, reply: Any) -> None:
        """Give each of them his, or have each ask alone."""
        try:
            answers = self._joined.spread(reply)
            if answers is None:
                self._pipeline.ask_apart(self.asked)
                return
            for (_, answer, *_), told in zip(self.asked, answers, strict=True):
                if not answer.done():
                    answer.set_result(told)
        except BaseException as problem:
            # Struck in the middle: whoever has no answer by now will have none.
            for _, answer, *_ in self.asked:
                if not answer.done():
                    fail(answer, NoAnswer(self._pipeline.address, problem, sent=True))
            raise


def fail(answer: asyncio.Future[Any], why: NoAnswer) -> None:
    """No answer will come."""
    answer.set_exception(why)
    # A task that was cancelled never looks: that is no news for the log.
    answer.exception()


Expected = tuple[asyncio.Future[Any] | FutureOfMany, float, float]
"""Who waits for an answer, until when, and when a connection that has not answered is given up."""


class Pipeline:
    """Requests of many tasks on one connection: they go out together, and answers come back in order."""

    def __init__(self, connection: AsyncioConnection, join: Join = apart) -> None:
        self.connection = connection
        self._join = join
        self.address = connection.address
        self._loop = asyncio.get_running_loop()
        self._pending: deque[Expected] = deque()
        """Who waits for an answer to what was sent."""
        self._unsent: list[Asked] = []
        self._seen = 0
        """How many were unsent when that was last looked at."""
        self._send_by = 0.0
        """When they have to go, whoever else may come."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        connection.replied, connection.ended = self._take, self._fail

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return not (self._pending or self._unsent)

    def ask(self, request: Request, until: float, moment: float = 0.0) -> asyncio.Future[Any]:
        """Send this, after that moment at the latest; its answer, when it comes. Cancelling that leaves its place in the order."""
        return self._put(request, *self._deadlines(until, moment))

    async def ask_all(self, requests: Sequence[bytes], until: float) -> list[Any]:
        """The answers to several commands that are sent together."""
        deadlines = self._deadlines(until)
        return [await answer for answer in [self._put(request, *deadlines) for request in requests]]

    def _deadlines(self, until: float, moment: float = 0.0) -> tuple[float, float]:
        """By when what is put next has to be answered, and when its connection is given up; NoAnswer if it would be in vain.

        Its own deadline ends its own wait alone: others on this connection have more time.
        """
        connection = self.connection
        if connection.broken is not None:
            raise NoAnswer(self.address, connection.broken, sent=False)
        now = clock.now()
        if until <= now:
            raise NoAnswer(self.address, "no time left to ask", sent=False, late=True)
        if not self._unsent:
            # Whoever asks in this turn of the loop travels in the same packet.
            self._seen, self._send_by = 0, now + moment
            self._loop.call_soon(self._flush)
        elif now + moment < self._send_by:
            self._send_by = now + moment
        give_up = min(now + connection.patience, max(until, now + SHORTEST_PATIENCE_S))
        deadline = min(until, give_up)
        # One timer for all: most deadlines come in the order of the requests. One that should have rung by now may have been struck.
        if not now <= self._timer_at <= deadline:
            self._set_timer(deadline, now)
        return until, give_up

    def ask_apart(self, asked: list[Asked]) -> None:
        """Send each of these alone, before what was not sent yet; but for those whom nobody waits for any more."""
        again = [one for one in asked if not one[1].done()]
        if not again:
            return
        if not self._unsent:
            self._seen = 0
            self._loop.call_soon(self._flush)
        self._send_by = 0.0
        self._unsent = [(bytes(request), answer, until, last) for request, answer, until, last in again] + self._unsent

    def _put(self, request: Request, deadline: float, give_up: float) -> asyncio.Future[Any]:
        answer = self._loop.create_future()
        # In one instruction: an answer that nobody takes would be taken by the next.
        self._unsent.append((request, answer, deadline, give_up))
        return answer

    def _flush(self) -> None:
        unsent = self._unsent
        try:
            if len(unsent) > self._seen and clock.now() < self._send_by:
                # One came in this turn, so one may come in the next.
                self._seen = len(unsent)
                self._loop.call_soon(self._flush)
                return
            packet, waiting = self._pack(unsent)
            self._pending.extend(waiting)
            self._unsent = []
            self.connection.write(packet)
        except BaseException:  # nobody knows what of it was sent
            self.connection.close(ConnectionAbortedError("struck down while it was sending"))
            raise

    def _pack(self, unsent: list[Asked]) -> tuple[bytes, list[Expected]]:
        """The packet of all these, and who waits for its answers; whoever asks together waits together from now on."""
        if len(unsent) == 1:
            return bytes(unsent[0][0]), [unsent[0][1:]]
        parcels = self._join([request for request, *_ in unsent])
        if parcels is None:
            return b"".join([bytes(one[0]) for one in unsent]), [one[1:] for one in unsent]
        packet, waiting = list[bytes](), list[Expected]()
        for parcel in parcels:
            if isinstance(parcel, int):
                packet.append(bytes(unsent[parcel][0]))
                waiting.append(unsent[parcel][1:])
                continue
            asked = [unsent[place] for place in parcel.places]
            packet.append(bytes(parcel))
            first, last = min([one[2] for one in asked]), min([one[3] for one in asked])
            waiting.append((FutureOfMany(parcel, asked, self), first, last))
        return b"".join(packet), waiting

    def _set_timer(self, deadline: float, now: float) -> None:
        before, due = self._timer, self._timer_at
        # First the new one: struck in between, there are two, and nobody waits for ever.
        self._timer = self._loop.call_later(max(0.0, deadline - now), self._tick)
        self._timer_at = deadline
        if before is not None and due > now:  # one that is only late still rings
            before.cancel()

    def _tick(self) -> None:
        now = clock.now()
        self._set_timer(now + 1.0, now)  # if this is struck
        # Answers come in order: after one that does not come there is nothing to hope for.
        if any(give_up <= now for *_, give_up in self._pending) or any(give_up <= now for *_, give_up in self._unsent):
            self.connection.close(TimeoutError("no answer in time"))
            self._fail(self.connection.broken or TimeoutError())  # where a close before was struck
            return
        moments = []
        for answer, until, give_up in self._waiting():
            if answer.done():
                continue  # its place in the order is kept
            if until <= now:
                fail(answer, NoAnswer(self.address, TimeoutError("no answer in time"), sent=True))
            else:
                moments.append(until)
            moments.append(give_up)
        if moments:
            self._set_timer(min(moments), now)
        elif self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, 0.0

    def _waiting(self) -> Iterator[tuple[asyncio.Future[Any], float, float]]:
        """Each that waits for an answer, also as one of many."""
        for waiting, until, give_up in self._pending:
            if isinstance(waiting, FutureOfMany):
                yield from (one[1:] for one in waiting.asked)
            else:
                yield waiting, until, give_up
        yield from (one[1:] for one in self._unsent)

    def _take(self, reply: Any) -> None:
        """Hand the answer to whoever asked first."""
        if type(reply) is PUSHED:
            return
        if not self._pending:
            self.connection.close(ConnectionAbortedError("an answer that nobody asked for"))
            return
        answer = self._pending[0][0]
        if not answer.done():
            answer.set_result(reply)
        self._pending.popleft()  # after it has its answer: struck in between, it would wait for ever

    def _fail(self, why: Exception) -> None:
        """Whoever still waits for an answer learns that none will come."""
        for answer, *_ in list(self._waiting()):
            if not answer.done():
                fail(answer, NoAnswer(self.address, why, sent=True))
        self._pending.clear()
        self._unsent = []
