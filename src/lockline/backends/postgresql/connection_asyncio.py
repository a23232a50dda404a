"""A connection that the loop waits for. No task reads it: one could be cancelled by a program that cancels all it can find."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Generator
from typing import TypeVar

from ...runtime import clock
from ..failures import NoAnswer, Refused
from ..sql.calls import RoutineCall, Rows
from .connection import READ, WRITE, Manner, PostgresqlSession
from .given_up import GivenUp
from .target import PostgresqlLogin

T = TypeVar("T")


class AsyncioSession(PostgresqlSession):
    """Used by one task at a time, on one loop."""

    def __init__(
        self,
        servers: tuple[PostgresqlLogin, ...],
        manner: Manner,
        login: float = 0.0,
        given_up: GivenUp | None = None,
    ) -> None:
        super().__init__(servers, manner, login, given_up)
        self._waits: asyncio.Future[bool] | None = None
        self._fd = -1
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self, until: float) -> float:
        """Connect and log in, to the first server that lets us."""
        each, whole = min(self._patience, until - clock.now()), self.whole_login(until)
        for server, share in self.shares(whole):
            try:
                address = await self._address(server, share)
                await self._drive(self.connecting(server, **address), share, sent=False, each=each)
                break
            except (NoAnswer, Refused):
                if self.give_up(whole):
                    raise
        if self.manner.pooled is None:
            self.manner.pooled = self.is_pooled(await self.query(b"SELECT pg_backend_pid()", whole))
        return self.after_login(until)

    async def _address(self, server: PostgresqlLogin, until: float) -> dict[str, str]:
        """The address behind the name: libpq would keep the whole loop waiting while it looks that up."""
        host = str(server.parameters.get("host") or "")
        if not host or host.startswith(("/", "@")) or "," in host or "hostaddr" in server.parameters:
            return {}
        try:
            async with asyncio.timeout(max(0.0, min(until - clock.now(), self._patience))):
                found = await asyncio.get_running_loop().getaddrinfo(
                    host, server.parameters.get("port") or 5432, type=socket.SOCK_STREAM
                )
        except (OSError, TimeoutError) as problem:
            # Without any time left it tells nothing of the server.
            late = clock.now() >= until
            raise NoAnswer(server.where, problem, sent=False, refused=True, late=late) from problem
        # libpq itself goes on to the next one where the first does not let us in.
        hosts = list(dict.fromkeys(str(each[4][0]) for each in found))
        if len(hosts) == 1:
            return {"hostaddr": hosts[0]}
        return {"host": ",".join([host] * len(hosts)), "hostaddr": ",".join(hosts)}

    async def ask(self, call: RoutineCall, until: float) -> Rows:
        """The answer of one routine."""
        return await self._drive(self.asking(call), until)

    async def query(self, text: bytes, until: float) -> list[list[bytes | None]]:
        """The rows of a statement of our own."""
        return await self._drive(self.querying(text), until)

    async def _drive(
        self, steps: Generator[tuple[int, int], None, T], until: float, *, sent: bool = True, each: float | None = None
    ) -> T:
        each = self.each_answer(until, each)
        try:
            while True:
                fd, want = next(steps)
                # For each answer anew: a login is several, and a server that answers slowly is none that is silent.
                if not await self._ready(fd, want, min(until, clock.now() + each)):
                    raise NoAnswer(self.where, "no answer in time", sent=sent)
                if self.gone:
                    raise NoAnswer(self.where, "the client was closed", sent=sent)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    async def _ready(self, fd: int, want: int, until: float) -> bool:
        loop = asyncio.get_running_loop()
        waits: asyncio.Future[bool] = loop.create_future()
        self._fd, self._waits = fd, waits
        timer = loop.call_later(max(0.0, until - clock.now()), _settle, waits, False)
        if want & READ:
            loop.add_reader(fd, _settle, waits, True)
        if want & WRITE:
            loop.add_writer(fd, _settle, waits, True)
        try:
            return await waits
        finally:
            timer.cancel()
            self._waits = None
            if not self.gone:
                loop.remove_reader(fd)
                loop.remove_writer(fd)

    def watch(self, heard: Callable[[], None]) -> None:
        """From now on the loop calls this when something has come."""
        self._loop = asyncio.get_running_loop()
        self._fd = self.conn.socket
        self._loop.add_reader(self._fd, heard)
        # What came together with the last answer is here already.
        self._loop.call_soon(heard)

    def close(self) -> None:
        """Close it, also one that somebody waits for."""
        waits = self._waits
        if waits is not None and not self.gone:
            loop = waits.get_loop()
            if not loop.is_closed():
                loop.remove_reader(self._fd)
                loop.remove_writer(self._fd)
                _settle(waits, True)
        if self._loop is not None and not self.gone and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        super().close()


def _settle(waits: asyncio.Future[bool], ready: bool) -> None:
    if not waits.done():
        waits.set_result(ready)


def maker(
    servers: tuple[PostgresqlLogin, ...], manner: Manner, login: float, given_up: GivenUp
) -> Callable[[], AsyncioSession]:
    """What makes new ones."""
    return lambda: AsyncioSession(servers, manner, login, given_up)
