"""An asyncio connection, read by the loop itself: a task that reads could be cancelled by a program that cancels all it can find."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, cast

import redis

from ...errors import ClientClosed
from ...runtime import clock
from ...runtime.looping import stay_cancelled
from .commands import INFO, PUSHED, new_reader
from .errors import NoAnswer, failed_login, vet
from .joining import Join, Joined, Request, apart
from .target import Address, Server

A_MOMENT = 0.0003
"""Seconds for which a request that nobody waits for but who sent it is held back for others, as long as each turn of the loop brings
one: a packet costs more than what is in it. Not longer: who leaves together comes back together, to a line that is empty meanwhile."""


def _nobody(_: Any) -> None:
    """Until somebody wants to know."""


class AsyncioConnection(asyncio.Protocol):
    """One connection of redis-py, after its login a stream of replies, each handed to `replied` as it comes.

    `ended` is told once, why, when no more will come. Whoever uses the connection sets both after `open`.
    """

    def __init__(self, server: Server) -> None:
        self.address = server.address
        self.patience = server.patience
        self.broken: Exception | None = None
        self.replied: Callable[[Any], None] = _nobody
        self.ended: Callable[[Exception], None] = _nobody
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
        except (redis.RedisError, OSError, TimeoutError) as problem:
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

    def data_received(self, data: bytes) -> None:
        """Hand on each reply."""
        gets = self._gets
        try:
            self._feed(data)
            while self.broken is None and (reply := gets()) is not Ellipsis:
                self.replied(reply)
        except OSError as problem:
            self.close(problem)

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


Asked = tuple[Request, asyncio.Future[Any], float]
"""One request that travels as a part of another, who waits for its answer, and until when."""


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
            for (_, answer, _), told in zip(self.asked, answers, strict=True):
                if not answer.done():
                    answer.set_result(told)
        except BaseException as problem:
            # Struck in the middle: whoever has no answer by now will have none.
            for _, answer, _ in self.asked:
                if not answer.done():
                    fail(answer, NoAnswer(self._pipeline.address, problem, sent=True))
            raise


def fail(answer: asyncio.Future[Any], why: NoAnswer) -> None:
    """No answer will come."""
    answer.set_exception(why)
    # A task that was cancelled never looks: that is no news for the log.
    answer.exception()


class Pipeline:
    """Requests of many tasks on one connection: they go out together, and answers come back in order."""

    def __init__(self, connection: AsyncioConnection, join: Join = apart) -> None:
        self.connection = connection
        self._join = join
        self.address = connection.address
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[asyncio.Future[Any] | FutureOfMany, float]] = deque()
        self._unsent: list[Request] = []
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
        return not self._pending

    def ask(self, request: Request, until: float, moment: float = 0.0) -> asyncio.Future[Any]:
        """Send this, after that moment at the latest; its answer, when it comes. Cancelling that leaves its place in the order."""
        return self._put(request, self._deadline(until, moment))

    async def ask_all(self, requests: Sequence[bytes], until: float) -> list[Any]:
        """The answers to several commands that are sent together."""
        deadline = self._deadline(until)
        return [await answer for answer in [self._put(request, deadline) for request in requests]]

    def _deadline(self, until: float, moment: float = 0.0) -> float:
        """By when what is put next has to be answered; NoAnswer if it would be in vain."""
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
        deadline = min(until, now + connection.patience)
        # One timer for all: most deadlines come in the order of the requests.
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline, now)
        return deadline

    def ask_apart(self, asked: list[Asked]) -> None:
        """Send each of these alone, before what was not sent yet; but for those whom nobody waits for any more."""
        again = [one for one in asked if not one[1].done()]
        if not again:
            return
        if not self._unsent:
            self._seen = 0
            self._loop.call_soon(self._flush)
        self._send_by = 0.0
        sent, pending = len(self._pending) - len(self._unsent), list(self._pending)
        pending[sent:sent] = [(answer, deadline) for _, answer, deadline in again]
        unsent = [bytes(request) for request, _, _ in again] + self._unsent
        # Together: answers are given in the order of the requests.
        self._unsent, self._pending = unsent, deque(pending)

    def _put(self, request: Request, deadline: float) -> asyncio.Future[Any]:
        self._unsent.append(request)
        answer = self._loop.create_future()
        self._pending.append((answer, deadline))
        return answer

    def _flush(self) -> None:
        unsent = self._unsent
        if len(unsent) > self._seen and clock.now() < self._send_by:
            # One came in this turn, so one may come in the next.
            self._seen = len(unsent)
            self._loop.call_soon(self._flush)
            return
        self._unsent = []
        if len(unsent) == 1:
            self.connection.write(bytes(unsent[0]))
            return
        try:
            self.connection.write(self._pack(unsent))
        except BaseException:
            # Nobody knows what of it was sent.
            self.connection.close(ConnectionAbortedError("struck down while it was sending"))
            raise

    def _pack(self, unsent: list[Request]) -> bytes:
        """The packet of all these; whoever asks together waits together from now on."""
        parcels = self._join(unsent)
        if parcels is None:
            return b"".join([bytes(request) for request in unsent])
        before = len(self._pending) - len(unsent)
        pending = deque(islice(self._pending, before))
        # Nobody of these was sent, so none is a parcel.
        waiting = cast("list[tuple[asyncio.Future[Any], float]]", list(islice(self._pending, before, None)))
        packet = []
        for parcel in parcels:
            if isinstance(parcel, int):
                packet.append(bytes(unsent[parcel]))
                pending.append(waiting[parcel])
                continue
            asked = [(unsent[place], *waiting[place]) for place in parcel.places]
            packet.append(bytes(parcel))
            pending.append((FutureOfMany(parcel, asked, self), min([deadline for _, _, deadline in asked])))
        # In one instruction: whoever fails finds everybody who waits.
        self._pending = pending
        return b"".join(packet)

    def _set_timer(self, deadline: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_later(max(0.0, deadline - now), self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._pending:
            return
        now = clock.now()
        earliest = min(deadline for _, deadline in self._pending)
        if earliest > now:
            self._set_timer(earliest, now)
        else:
            # Answers come in order: after one that does not come there is nothing to hope for.
            self.connection.close(TimeoutError("no answer in time"))

    def _take(self, reply: Any) -> None:
        """Hand the answer to whoever asked first."""
        if type(reply) is PUSHED:
            return
        if not self._pending:
            self.connection.close(ConnectionAbortedError("an answer that nobody asked for"))
            return
        answer, _ = self._pending.popleft()
        if not answer.done():
            answer.set_result(reply)

    def _fail(self, why: Exception) -> None:
        """Whoever still waits for an answer learns that none will come."""
        if self._timer is not None:
            self._timer.cancel()
        for waiting, _ in self._pending:
            for answer in [answer for _, answer, _ in waiting.asked] if type(waiting) is FutureOfMany else (waiting,):
                if not answer.done():
                    fail(answer, NoAnswer(self.address, why, sent=True))  # type: ignore[arg-type]
        self._pending.clear()
        # Nor is what was still to go along: it has nobody left who waits for it.
        self._unsent = []


@asynccontextmanager
async def alone(lock: asyncio.Lock, address: Address, until: float) -> AsyncIterator[None]:
    """One at a time, and nobody waits for another's connection beyond his own deadline."""
    try:
        async with asyncio.timeout(max(0.0, until - clock.now()) if lock.locked() else None):
            await lock.acquire()
    except TimeoutError as problem:
        raise NoAnswer(address, "no time left to connect", sent=False, late=True) from problem
    try:
        yield
    finally:
        lock.release()


class AsyncioLink:
    """The way to one server, for all tasks of the loop that first asked: one connection, opened when it is needed."""

    kept_after_fork = True

    def __init__(self, server: Server, vets: bool, join: Join = apart) -> None:
        self._server = server
        self._join = join
        self._vets = vets
        self._pipeline: Pipeline | None = None
        self._opening = asyncio.Lock()
        self._unready: AsyncioConnection | None = None
        self._closed = False

    async def pipeline(self, until: float) -> Pipeline:
        """The one that is open, or a new one."""
        async with alone(self._opening, self._server.address, until):
            if self._closed:
                raise ClientClosed()
            pipeline = self._pipeline
            if pipeline is None or pipeline.connection.broken is not None:
                self._unready = AsyncioConnection(self._server)
                try:
                    pipeline = self._pipeline = await self._make_ready(self._unready, until)
                finally:
                    self._unready = None
            return pipeline

    async def _make_ready(self, connection: AsyncioConnection, until: float) -> Pipeline:
        pipeline = Pipeline(await connection.open(until), self._join)
        try:
            if self._vets:
                vet((await pipeline.ask_all((INFO,), until))[0], self._server.address)
                self._vets = False
            if self._closed:
                raise ClientClosed()
        except BaseException:
            connection.close(ConnectionAbortedError("not usable"))
            raise
        return pipeline

    async def ask(self, request: Request, until: float) -> Any:
        pipeline = self._pipeline
        if pipeline is None or pipeline.connection.broken is not None:
            pipeline = await self.pipeline(until)
        return await pipeline.ask(request, until)

    ask_along = ask

    async def ask_in_order(self, request: Request, until: float) -> Any:
        pipeline = self._pipeline
        if pipeline is None or pipeline.connection.broken is not None:
            pipeline = await self.pipeline(until)
        # Who comes next is at work already; it brings the next of these in the next turn of the loop, mostly.
        return await pipeline.ask(request, until, A_MOMENT)

    async def ask_all(self, requests: Sequence[bytes], until: float) -> list[Any]:
        return await (await self.pipeline(until)).ask_all(requests, until)

    def forget(self) -> None:
        if self._pipeline is not None and self._pipeline.idle:
            self._pipeline.connection.close(ConnectionAbortedError("dropped while idle"))

    def close(self) -> None:
        self._closed = True
        open_ones = (self._unready, None if self._pipeline is None else self._pipeline.connection)
        for connection in open_ones:
            if connection is not None:
                connection.close(ConnectionAbortedError("the client was closed"))
