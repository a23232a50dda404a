"""A connection on which a server speaks unasked. One that is quiet is asked whether it still works: a dead one is quiet, too.

What is heard is a list each: [b"message", channel, text], [b"subscribe", channel, count] and the like; or a ServerError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ...runtime import clock
from ...runtime.limits import let_through
from .commands import PING, ServerError, pack
from .connection_asyncio import AsyncioConnection
from .connection_blocking import BlockingConnection
from .errors import NoAnswer, said_no
from .target import Server

QUIET = 1.0
"""Seconds of silence after which a subscription is asked whether it still works; as long again for its answer."""


class BlockingSubscription(BlockingConnection):
    """Read by whoever polls its socket; `hear` does not wait."""

    __slots__ = ("_pinged_at", "channel")

    def __init__(self, server: Server, until: float, channel: str = "") -> None:
        """Open it; with a channel, until the server has confirmed that: before, nobody may be sent there."""
        super().__init__(server)
        self.channel = channel
        self.open(until)
        try:
            confirmed = self._subscribe(until) if channel else None
            self.sock.setblocking(False)
        except OSError as problem:
            self.close()
            let_through(problem)
            raise NoAnswer(self.address, problem, sent=False) from problem
        except BaseException:
            self.close()
            raise
        if isinstance(confirmed, ServerError):
            self.close()
            raise said_no(confirmed, self.address)
        self._pinged_at = self.heard_at

    def _subscribe(self, until: float) -> Any:
        self.say("SUBSCRIBE", self.channel)
        # As any answer: who waits for its turn has a whole ttl, and a line that is dead shall not cost it that.
        until = min(until, clock.now() + self.patience)
        while not (heard := self.hear(until)):
            pass
        return heard[0]

    def say(self, *words: str) -> None:
        """Subscribe to more, or to less; OSError when the connection is gone."""
        self.send(pack(words))

    def still_works(self) -> bool:
        """Ask when it has been quiet; False when the last question stayed unanswered."""
        now = clock.now()
        if now < self.heard_at + QUIET:
            return True
        if self._pinged_at > self.heard_at:
            return now < self._pinged_at + QUIET
        self._pinged_at = now
        try:
            self.send(PING)
        except OSError:
            return False
        return True


class AsyncioSubscription:
    """Brought by the loop: each reply to `heard`, and to `ended`, once, why nothing more will come."""

    def __init__(
        self, server: Server, heard: Callable[[Any], None], ended: Callable[[Exception], None] = lambda why: None
    ) -> None:
        self.address = server.address
        self.channel = ""
        self._connection = AsyncioConnection(server)
        self._heard = heard
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._heard_at = 0.0
        self._pinged = False
        self._timer: asyncio.TimerHandle | None = None

    async def open(self, until: float, channel: str = "") -> AsyncioSubscription:
        """Open it; with a channel, until the server has confirmed that: before, nobody may be sent there."""
        self.channel = channel
        connection = await self._connection.open(until)
        confirmed: asyncio.Future[Any] = self._loop.create_future()

        def refuse(why: Exception) -> None:
            if not confirmed.done():
                confirmed.set_exception(NoAnswer(self.address, why, sent=False))
                confirmed.exception()

        def confirm(reply: Any) -> None:
            if not confirmed.done():
                confirmed.set_result(reply)

        try:
            if channel:
                connection.replied, connection.ended = confirm, refuse
                self.say("SUBSCRIBE", channel)
                try:
                    async with asyncio.timeout(max(0.001, min(until - clock.now(), connection.patience))):
                        reply = await confirmed
                except TimeoutError as problem:
                    raise NoAnswer(self.address, "did not confirm the subscription", sent=False) from problem
                if isinstance(reply, ServerError):
                    raise said_no(reply, self.address)
            if connection.broken is not None:
                raise NoAnswer(self.address, connection.broken, sent=False)
        except BaseException:
            self.close(ConnectionAbortedError("not usable"))
            raise
        connection.replied, connection.ended = self._take, self._end
        self._heard_at = clock.now()
        self._timer = self._loop.call_later(QUIET, self._look)
        return self

    def say(self, *words: str) -> None:
        """Subscribe to more, or to less."""
        self.send(pack(words))

    def send(self, request: bytes) -> None:
        """Ask for something whose answer is heard like all else."""
        self._connection.write(request)

    def _take(self, reply: Any) -> None:
        self._heard_at = clock.now()
        self._pinged = False
        self._heard(reply)

    def _look(self) -> None:
        """Ask when it has been quiet, end it when the last question stayed unanswered."""
        left = self._heard_at + QUIET - clock.now()
        if left <= 0 and self._pinged:
            self._timer = None
            self.close(TimeoutError("silent"))
            return
        if left <= 0:
            self._pinged, left = True, QUIET
            self._connection.write(PING)
        self._timer = self._loop.call_later(left, self._look)

    def _end(self, why: Exception) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._ended(why)

    def close(self, why: Exception) -> None:
        """End it, also one that is being opened."""
        self._connection.close(why)
