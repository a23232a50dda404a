"""One connection for any number of tasks of one event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from ...runtime import Runtime, clock
from ..url import Endpoint
from ..whole_stream import WholeStream
from .connection import EtcdLink
from .grpc import Broken, Grpc, GrpcCall, NotTaken
from .target import EtcdTarget


class LoopEtcdLink(EtcdLink, WholeStream):
    """A transport and the calls on it; the loop reads, and what arrives wakes whoever waits for it."""

    _transport: asyncio.Transport | None = None

    def __init__(self, grpc: Grpc, endpoint: Endpoint, runtime: Runtime) -> None:
        EtcdLink.__init__(self, grpc, endpoint, runtime)
        WholeStream.__init__(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._transmit()

    def received(self, data: bytearray) -> None:
        self.heard = clock.now()
        done = self.grpc.feed(data)
        if self.grpc.must_send(done):
            self._transmit()
        self._wake(done)
        if self.grpc.broken is not None and self.lost is not None:
            self.lost()

    def struck(self) -> None:
        self.close("struck down while it was reading")

    def connection_lost(self, problem: Exception | None) -> None:
        self._wake(self.grpc.fail(f"the connection was lost: {problem or 'closed by the server'}"))
        if self.lost is not None:
            self.lost()

    def _send(self, change: Callable[..., Any], *args: Any) -> Any:
        result = change(*args)
        self._transmit()
        return result

    def _transmit(self) -> None:
        data = self.grpc.outgoing()
        if data and self._transport is not None:
            self._transport.write(data)

    async def wait_for(self, call: GrpcCall, until: float) -> bool:
        """Wait for the end of this call; whether it came by then."""
        if call.done:
            return True
        signal = self._runtime.signal()
        call.wake = signal.set
        await signal.wait(until)
        return call.done

    def _fileno(self) -> int:
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        return -1 if sock is None else int(sock.fileno())

    def close(self, why: str) -> None:
        """Let go of the socket; whoever still waits gets no answer."""
        self._wake(self.grpc.fail(why))
        if self._transport is not None:
            self._transport.abort()

    def forget(self) -> None:
        """In a forked child: let go of the socket without a word to the server."""
        number = self._fileno()
        if number < 0:
            return
        # The transport would take itself out of the selector, which the parent still uses. Putting nothing in the place of
        # the child's copy lets go of the connection and leaves number, transport and selector as they are.
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, number)
        os.close(nothing)


async def open_link(target: EtcdTarget, endpoint: Endpoint, runtime: Runtime, until: float) -> LoopEtcdLink:
    """A fresh connection to this endpoint; NotTaken when there is nobody."""
    link = LoopEtcdLink(Grpc(str(endpoint), target.scheme), endpoint, runtime)
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
