"""One connection for any number of tasks of one event loop."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable

from ...runtime import clock
from ..url import Endpoint
from .connection import Broken, Call, Grpc, NotTaken, Who
from .streams import Streams
from .target import EtcdTarget


class LoopLink(asyncio.Protocol):
    """A transport and the calls on it; what arrives wakes whoever waits for it."""

    def __init__(self, grpc: Grpc, endpoint: Endpoint) -> None:
        self.grpc = grpc
        self.endpoint = endpoint
        self.opened = self.heard = self.answered = clock.now()
        self.pinged = 0.0
        self.streams: Streams
        self._transport: asyncio.Transport | None = None
        self.lost: Callable[[], None] | None = None
        """Told when the connection ends by itself: there may be no request that would notice."""
        self.freed: Callable[[], None] | None = None
        """Told when calls have ended: there is room for others."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._transmit()

    def data_received(self, data: bytes) -> None:
        self.heard = clock.now()
        done = self.grpc.feed(data)
        if self.grpc.must_send(done):
            self._transmit()
        self._wake(done)
        if self.grpc.broken is not None and self.lost is not None:
            self.lost()

    def connection_lost(self, problem: Exception | None) -> None:
        self._wake(self.grpc.fail(f"the connection was lost: {problem or 'closed by the server'}"))
        if self.lost is not None:
            self.lost()

    def start(
        self, method: str, messages: bytes, token: str | None = None, hear: Callable[[bytes], None] | None = None,
        ends: bool = True, who: Who = "call",
    ) -> Call:  # fmt: skip
        """Begin a call; Full when as many are under way as the server takes."""
        call = self.grpc.start(method, messages, token, hear, ends, who)
        self._transmit()
        return call

    def more(self, call: Call, messages: bytes) -> None:
        """Another message on a call that goes on."""
        self.grpc.more(call, messages)
        self._transmit()

    def cancel(self, call: Call) -> None:
        """Nobody waits for this any more."""
        self.grpc.cancel(call)
        self._transmit()
        if self.freed is not None:
            self.freed()

    def ping(self) -> None:
        """Ask for a sign of life."""
        self.pinged = clock.now()
        self.grpc.ping()
        self._transmit()

    def _transmit(self) -> None:
        data = self.grpc.outgoing()
        if data and self._transport is not None:
            self._transport.write(data)

    def _wake(self, calls: list[Call]) -> None:
        for call in calls:
            if call.wake is not None:
                call.wake()
        if calls and self.freed is not None:
            self.freed()

    async def finished(self, call: Call, until: float) -> bool:
        """Wait for the end of this call; whether it came by then."""
        if call.done:
            return True
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def settle() -> None:
            if not waiter.done():
                waiter.set_result(None)

        call.wake = settle
        timer = loop.call_later(max(0.0, until - clock.now()), settle)
        try:
            await waiter
        finally:
            timer.cancel()
        return call.done

    def receive(self, until: float) -> None:
        """Nothing to do: the loop reads."""

    def nudge(self) -> None:
        """Nothing to do: nobody sits in a read."""

    def unread(self) -> bool:
        """Whether something has arrived that the loop had no time to read: a silence of our own making."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        poller = select.poll()
        try:
            poller.register(sock.fileno() if sock is not None else -1, select.POLLIN)
            return bool(poller.poll(0))
        except (OSError, ValueError):
            return False  # closed

    def glance(self) -> None:
        """Nothing to do: the loop reads."""

    def close(self, why: str) -> None:
        """Let go of the socket; whoever still waits gets no answer."""
        self._wake(self.grpc.fail(why))
        if self._transport is not None:
            self._transport.abort()

    def forget(self) -> None:
        """In a forked child: let go of the socket without a word to the server."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is None or sock.fileno() < 0:
            return
        # The transport would take itself out of the selector, which the parent still uses. Putting nothing in the place of
        # the child's copy lets go of the connection and leaves number, transport and selector as they are.
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, sock.fileno())
        os.close(nothing)


async def open_link(target: EtcdTarget, endpoint: Endpoint, until: float) -> LoopLink:
    """A fresh connection to this endpoint; NotTaken when there is nobody."""
    link = LoopLink(Grpc(str(endpoint), target.scheme), endpoint)
    try:
        async with asyncio.timeout(max(0.001, until - clock.now())):
            await asyncio.get_running_loop().create_connection(
                lambda: link, endpoint.host, endpoint.port, ssl=target.tls
            )
    except TimeoutError:
        raise Broken(f"{endpoint}: no connection in time") from None
    except OSError as problem:
        raise NotTaken(f"{endpoint}: {problem}") from None
    return link
