"""Lines to an agent for the tasks of one event loop."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterable
from typing import Any, Final

import httpcore

from ...runtime import clock
from ..url import Endpoint
from .connection import ConsulReply, ConsulRequest, NoReply, Pace, TooLate, Unsent, origin, prepared, reply
from .target import ConsulTarget

AT_ONCE: Final = 1 << 16
WHOLE: Final = 1 << 22
"""What asyncio may read ahead: a long line is a long answer."""


class _Stream(httpcore.AsyncNetworkStream):
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._unsent = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            if self._unsent:
                # Head and body go out together: two packets are twice the work on both sides.
                unsent, self._unsent = self._unsent, b""
                self._writer.write(unsent)
                await self._writer.drain()
            return await self._reader.read(max(max_bytes, AT_ONCE))
        except OSError as problem:
            raise httpcore.ReadError(str(problem)) from None

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._unsent += buffer

    async def aclose(self) -> None:
        self._writer.transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return self  # it was connected with TLS

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return self._reader.at_eof() or self._writer.transport.is_closing()
        return None


class LoopConsulLink(httpcore.AsyncNetworkBackend):
    """One connection, used by one task at a time."""

    def __init__(self, target: ConsulTarget, endpoint: Endpoint) -> None:
        self._target = target
        self.endpoint = endpoint
        self._transport: asyncio.WriteTransport | None = None
        self.closed = False
        self._http = httpcore.AsyncHTTPConnection(
            origin(target, endpoint), ssl_context=target.tls, network_backend=self, keepalive_expiry=None
        )

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:  # fmt: skip
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=self._target.tls, limit=WHOLE)
        except OSError as problem:
            raise httpcore.ConnectError(str(problem)) from None
        self._transport = writer.transport
        if self.closed:
            # Let go while it was made: it would be kept for as long as the answer may take.
            self._transport.abort()
            raise httpcore.ConnectError("nobody asks any more")
        return _Stream(reader, writer)

    def stale(self) -> bool:
        """Whether it was closed meanwhile, by the agent or because the last answer was said to be the last."""
        return self.closed or self._http.is_closed() or self._http.has_expired()

    async def exchange(self, request: ConsulRequest, until: float) -> ConsulReply:
        """The answer, by then; NoReply if there is none."""
        asked = prepared(self._target, self.endpoint, request)
        try:
            async with asyncio.timeout(max(0.001, until - clock.now())):
                answer = await self._http.handle_async_request(asked)
                body = await answer.aread()
                await answer.aclose()
                return reply(answer.status, answer.headers, body)
        except httpcore.ConnectError as problem:
            self.close()
            raise Unsent(f"{self.endpoint}: {problem}") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, TimeoutError) as problem:
            gone = self._transport is None
            self.close()
            raise (Unsent if gone else NoReply)(f"{self.endpoint} gave no answer: {problem or 'too late'}") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of it: an exchange under way ends."""
        self.closed = True
        if self._transport is not None:
            try:
                self._transport.abort()
            except RuntimeError:
                pass  # its loop has ended

    def forget(self) -> None:
        """In a forked child: let go of the socket without a word to the agent."""
        self.closed = True
        transport, self._transport = self._transport, None
        sock = None if transport is None else transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return
        # The transport would take itself out of the selector, which the parent still uses. Putting nothing in the place of
        # the child's copy lets go of the connection and leaves number, transport and selector as they are.
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, sock.fileno())
        os.close(nothing)

    def __del__(self) -> None:
        self.close()


class LoopConsulLinks:
    """At most so many lines, handed round among the tasks."""

    def __init__(self, target: ConsulTarget, most: int) -> None:
        self._target = target
        self._most = most
        self._begin()

    def _begin(self) -> None:
        self._free: dict[Endpoint, list[LoopConsulLink]] = {}
        self._turns: dict[Endpoint, asyncio.Semaphore] = {}
        self._paces: dict[Endpoint, Pace] = {}
        self._closed = False

    async def exchange(self, endpoint: Endpoint, request: ConsulRequest, until: float, most: float) -> ConsulReply:
        """One exchange on whichever line is free, or will be by then; the answer itself may take so many seconds at most."""
        turns = self._turns.setdefault(endpoint, asyncio.Semaphore(self._most))
        free = self._free.setdefault(endpoint, [])
        try:
            async with asyncio.timeout(max(0.001, until - clock.now())):
                await turns.acquire()
        except TimeoutError:
            raise Unsent("every connection of this client is in use") from None
        try:
            line = free.pop() if free else LoopConsulLink(self._target, endpoint)
            while line.stale():
                line.close()
                line = free.pop() if free else LoopConsulLink(self._target, endpoint)
            pace, began = self._paces.setdefault(endpoint, Pace()), clock.now()
            try:
                if request.only_in_time:
                    pace.check(endpoint, began, until)
            except TooLate:
                free.append(line)
                raise
            answer = await line.exchange(request, min(until, began + most))
            pace.note(began, clock.now())
            if self._closed:
                line.close()
            else:
                free.append(line)
            return answer
        finally:
            turns.release()

    def apart(self, endpoint: Endpoint) -> LoopConsulLink:
        """A line that is nobody else's."""
        return LoopConsulLink(self._target, endpoint)

    def close(self) -> None:
        """Let go of those that nobody uses."""
        self._closed = True
        self.drop_idle()

    def drop_idle(self) -> None:
        for free in self._free.values():
            while free:
                free.pop().close()

    def forget(self) -> None:
        """In a forked child."""
        for free in self._free.values():
            for line in free:
                line.forget()
        self._begin()
