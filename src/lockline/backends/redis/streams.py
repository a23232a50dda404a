"""The asyncio port: one connection per server for all tasks; requests go out together, answers come back in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import hiredis
import redis

from ...errors import ClientClosed
from ...runtime import clock
from ...runtime.looping import stay_cancelled
from .port import PUSHED, pack
from .problems import Address, NoAnswer, failed_login, vet
from .target import Target

INFO = pack(("INFO", "server"))


class Stream(asyncio.Protocol):
    """One connection of redis-py, after its login shared by every task that asks.

    The loop itself brings what arrives. A task that reads could be cancelled by a program that cancels all it can find.
    """

    def __init__(self, target: Target, address: Address) -> None:
        self.address = address
        self.patience = target.patience
        self.broken: Exception | None = None
        self._pending: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._unsent: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._login: asyncio.Timeout | None = None
        self._writer: asyncio.StreamWriter | None = None
        reader = hiredis.Reader(notEnoughData=Ellipsis)
        self._feed, self._gets = reader.feed, reader.gets

    async def open(self, target: Target, until: float, sentinel: bool = False) -> None:
        """Connect and log in."""
        self._connection = connection = target.connection(self.address, sentinel=sentinel)
        left = until - clock.now()
        if left <= 0:
            raise NoAnswer(self.address, "no time left to connect", sent=False, late=True)
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
        connection._writer.transport.set_protocol(self)
        if connection._reader.at_eof():
            self.close(ConnectionResetError("the server closed the connection"))

    def ask(self, requests: Sequence[bytes], until: float) -> list[asyncio.Future[Any]]:
        """Send these; their answers, when they come. Cancelling one leaves its place in the order."""
        if self.broken is not None:
            raise NoAnswer(self.address, self.broken, sent=False)
        now = clock.now()
        if until <= now:
            raise NoAnswer(self.address, "no time left to ask", sent=False, late=True)
        if not self._unsent:
            # Whoever asks in this turn of the loop travels in the same packet.
            self._loop.call_soon(self._flush)
        deadline = min(until, now + self.patience)
        # One timer for all: most deadlines come in the order of the requests.
        if self._timer is None or deadline < self._timer_at:
            self._set_timer(deadline, now)
        answers = []
        for request in requests:
            self._unsent.append(request)
            answer = self._loop.create_future()
            self._pending.append((answer, deadline))
            answers.append(answer)
        return answers

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self.broken is None and self._writer is not None:
            self._writer.write(b"".join(unsent))

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
            self.close(TimeoutError("no answer in time"))

    def data_received(self, data: bytes) -> None:
        """Hand each answer to whoever asked first."""
        gets, pending = self._gets, self._pending
        try:
            self._feed(data)
            while (reply := gets()) is not Ellipsis:
                if type(reply) is not PUSHED:
                    answer, _ = pending.popleft()
                    if not answer.done():
                        answer.set_result(reply)
        except (IndexError, hiredis.ProtocolError) as problem:
            self.close(problem)

    def eof_received(self) -> None:
        """No answer will come any more."""
        self.close(ConnectionResetError("the server closed the connection"))

    def connection_lost(self, problem: Exception | None) -> None:
        """Nor now."""
        self.close(problem or ConnectionResetError("the connection was closed"))

    def close(self, why: Exception) -> None:
        """End it; whoever still waits for an answer learns that none will come."""
        if self.broken is not None:
            return
        self.broken = why
        if self._writer is None:
            if self._login is not None and not self._login.expired():
                self._login.reschedule(self._loop.time())
            return
        if self._timer is not None:
            self._timer.cancel()
        self._writer.close()
        self._connection._writer = self._connection._reader = None
        for answer, _ in self._pending:
            if not answer.done():
                answer.set_exception(NoAnswer(self.address, why, sent=True))
                # A task that was cancelled never looks: that is no news for the log.
                answer.exception()
        self._pending.clear()


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


class LoopPort:
    """Requests on the loop that first asked."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.forked()

    def forked(self) -> None:
        # Kept, never closed: the parent's loop is a stranger here, and closing a transport would need it.
        self._inherited = getattr(self, "_streams", None)
        self._streams: dict[Address, Stream] = {}
        self._opening: dict[Address, asyncio.Lock] = {}
        self._unready: set[Stream] = set()
        self._vetted: set[Address] = set()
        self._closed = False

    async def _stream(self, address: Address, until: float, sentinel: bool) -> Stream:
        async with alone(self._opening.setdefault(address, asyncio.Lock()), address, until):
            if self._closed:
                raise ClientClosed("this client is closed; connect a new one")
            stream = self._streams.get(address)
            if stream is None or stream.broken is not None:
                stream = Stream(self._target, address)
                self._unready.add(stream)
                try:
                    await self._make_ready(stream, until, sentinel)
                finally:
                    self._unready.discard(stream)
                self._streams[address] = stream
            return stream

    async def _make_ready(self, stream: Stream, until: float, sentinel: bool) -> None:
        await stream.open(self._target, until, sentinel)
        try:
            if not sentinel and stream.address not in self._vetted:
                (info,) = stream.ask((INFO,), until)
                vet(await info, stream.address)
                self._vetted.add(stream.address)
            if self._closed:
                raise ClientClosed("this client is closed; connect a new one")
        except BaseException:
            stream.close(ConnectionAbortedError("not usable"))
            raise

    async def ask(self, address: Address, request: bytes, until: float) -> Any:
        stream = self._streams.get(address)
        if stream is None or stream.broken is not None:
            stream = await self._stream(address, until, False)
        (answer,) = stream.ask((request,), until)
        return await answer

    async def ask_all(
        self, address: Address, requests: Sequence[bytes], until: float, *, sentinel: bool = False
    ) -> list[Any]:
        stream = await self._stream(address, until, sentinel)
        answers = stream.ask(requests, until)
        return [await answer for answer in answers]

    def forget(self, address: Address) -> None:
        stream = self._streams.get(address)
        if stream is not None and not stream._pending:
            stream.close(ConnectionAbortedError("dropped while idle"))

    async def close(self) -> None:
        self._closed = True
        streams, self._streams = self._streams, {}
        for stream in (*streams.values(), *self._unready):
            stream.close(ConnectionAbortedError("the client was closed"))
