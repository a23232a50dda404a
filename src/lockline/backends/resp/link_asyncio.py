"""The way to one server, for the tasks of one loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ...errors import ClientClosed
from ...runtime.exclusive import Exclusive
from ...runtime.looping import LoopRuntime
from .commands import INFO
from .connection_asyncio import AsyncioConnection, Pipeline
from .errors import NoAnswer, vet
from .joining import Join, Request, apart
from .target import Address, Server

A_MOMENT = 0.0003
"""Seconds for which a request that nobody waits for but who sent it is held back for others, as long as each turn of the loop brings
one: a packet costs more than what is in it. Not longer: who leaves together comes back together, to a line that is empty meanwhile."""


def turns() -> Exclusive:
    """Whose turn it is to open a connection."""
    return Exclusive(LoopRuntime())


@asynccontextmanager
async def alone(turns: Exclusive, address: Address, until: float) -> AsyncIterator[None]:
    """One at a time, and nobody waits for another's connection beyond his own deadline."""
    async with turns(until) as mine:
        if not mine:
            raise NoAnswer(address, "no time left to connect", sent=False, late=True)
        yield


class AsyncioLink:
    """The way to one server, for all tasks of the loop that first asked: one connection, opened when it is needed."""

    kept_after_fork = True

    def __init__(self, server: Server, vets: bool, join: Join = apart) -> None:
        self._server = server
        self._join = join
        self._vets = vets
        self._pipeline: Pipeline | None = None
        self._opening = turns()
        self._unready: AsyncioConnection | None = None
        self._closed = False

    @property
    def ready(self) -> bool:
        """Whether the connection is open."""
        return self._pipeline is not None and self._pipeline.connection.broken is None

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
