"""The connections of a client to its servers: a few for each that threads share, or one for each that all tasks share."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from ...errors import ClientClosed
from ..resp.commands import pack
from ..resp.connection_asyncio import AsyncioConnection, Pipeline, alone
from ..resp.connection_blocking import BlockingConnection
from ..resp.errors import DiedIdle, NoAnswer, vet
from ..resp.pool import Pool
from ..resp.target import Address
from .target import Target

INFO = pack(("INFO", "server"))


class Connections(Protocol):
    """Requests to servers. Raises NoAnswer and nothing else, where a server does not answer."""

    async def ask(self, address: Address, request: bytes, until: float) -> Any:
        """The server's answer to one command."""

    async def ask_all(
        self, address: Address, requests: Sequence[bytes], until: float, *, sentinel: bool = False
    ) -> list[Any]:
        """The answers to several commands that were sent together, on one connection."""

    def forget(self, address: Address) -> None:
        """Close what is open to this server and idle; the next request connects anew."""

    async def close(self) -> None: ...
    def forked(self) -> None:
        """In a child: drop every socket without a word."""


def _closed() -> ClientClosed:
    return ClientClosed("this client is closed; connect a new one")


class ServerPool(Pool[BlockingConnection]):
    """The connections to one server, for threads; the server is vetted when the first is opened."""

    def __init__(self, target: Target, address: Address, most: int, sentinel: bool) -> None:
        server = target.server(address, sentinel=sentinel)
        super().__init__(most, lambda: BlockingConnection(server), lambda connection: not connection.gone)
        self.address = address
        self._vetted = sentinel

    def take(self, until: float) -> BlockingConnection:
        """A connection of the caller's own until it is given back or dropped."""
        connection = super().take(until)
        if connection is None:
            raise NoAnswer(self.address, "every connection is in use", sent=False, late=True)
        if not connection.is_open:
            try:
                connection.open(until)
                if not self._vetted:
                    vet(connection.ask(INFO, until), self.address)
                    self._vetted = True
            except BaseException:
                self.drop(connection)
                raise
        return connection

    def drop(self, connection: BlockingConnection) -> None:
        """It is of no use any more."""
        connection.close()
        self.make_room()

    def clear(self) -> None:
        """Close what is idle."""
        for connection in self.take_all_free():
            self.drop(connection)


class BlockingConnections:
    """Used by the calling thread itself."""

    def __init__(self, target: Target, most: int) -> None:
        self._target = target
        self._most = most
        self.forked()

    def forked(self) -> None:
        """Sockets of the parent are closed here by their garbage, without a word: redis-py knows its process."""
        self._pools: dict[Address, ServerPool] = {}
        self._closed = False

    def pool(self, address: Address, *, sentinel: bool = False) -> ServerPool:
        """The connections to this server."""
        pool = self._pools.get(address)
        if pool is None:
            pool = self._pools.setdefault(address, ServerPool(self._target, address, self._most, sentinel))
        # After the look, so that nobody is left with a pool that `close` did not see.
        if self._closed:
            raise _closed()
        return pool

    async def ask(self, address: Address, request: bytes, until: float) -> Any:
        pool = self._pools.get(address) or self.pool(address)
        while True:
            try:
                connection = pool.take(until) if pool.line else pool.free.pop()
            except IndexError:
                connection = pool.take(until)
            try:
                reply = connection.ask(request, until)
            except DiedIdle:
                pool.drop(connection)
                continue
            except BaseException:
                # Its answer may still come: nobody may read that as the answer to something else.
                pool.drop(connection)
                raise
            # Not a part of the `try`: once it is among the free ones it is no longer ours to drop.
            pool.free.append(connection)
            if pool.line:
                pool.call_next()
            return reply

    async def ask_all(
        self, address: Address, requests: Sequence[bytes], until: float, *, sentinel: bool = False
    ) -> list[Any]:
        pool = self.pool(address, sentinel=sentinel)
        while True:
            connection = pool.take(until)
            try:
                replies = connection.ask_all(requests, until)
            except DiedIdle:
                pool.drop(connection)
                continue
            except BaseException:
                pool.drop(connection)
                raise
            pool.give_back(connection)
            return replies

    def forget(self, address: Address) -> None:
        pool = self._pools.get(address)
        if pool is not None:
            pool.clear()

    async def close(self) -> None:
        self._closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.clear()


class AsyncioConnections:
    """One connection per server, for all tasks of the loop that first asked."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.forked()

    def forked(self) -> None:
        # Kept, never closed: the parent's loop is a stranger here, and closing a transport would need it.
        self._inherited = dict(self.__dict__)
        self._pipelines: dict[Address, Pipeline] = {}
        self._opening: dict[Address, asyncio.Lock] = {}
        self._unready: set[AsyncioConnection] = set()
        self._vetted: set[Address] = set()
        self._closed = False

    async def pipeline(self, address: Address, until: float, *, sentinel: bool = False) -> Pipeline:
        """The one that is open to this server, or a new one."""
        async with alone(self._opening.setdefault(address, asyncio.Lock()), address, until):
            if self._closed:
                raise _closed()
            pipeline = self._pipelines.get(address)
            if pipeline is None or pipeline.connection.broken is not None:
                connection = AsyncioConnection(self._target.server(address, sentinel=sentinel))
                self._unready.add(connection)
                try:
                    pipeline = await self._make_ready(connection, until, sentinel)
                finally:
                    self._unready.discard(connection)
                self._pipelines[address] = pipeline
            return pipeline

    async def _make_ready(self, connection: AsyncioConnection, until: float, sentinel: bool) -> Pipeline:
        pipeline = Pipeline(await connection.open(until))
        try:
            if not sentinel and connection.address not in self._vetted:
                vet((await pipeline.ask_all((INFO,), until))[0], connection.address)
                self._vetted.add(connection.address)
            if self._closed:
                raise _closed()
        except BaseException:
            connection.close(ConnectionAbortedError("not usable"))
            raise
        return pipeline

    async def ask(self, address: Address, request: bytes, until: float) -> Any:
        pipeline = self._pipelines.get(address)
        if pipeline is None or pipeline.connection.broken is not None:
            pipeline = await self.pipeline(address, until)
        (answer,) = pipeline.ask((request,), until)
        return await answer

    async def ask_all(
        self, address: Address, requests: Sequence[bytes], until: float, *, sentinel: bool = False
    ) -> list[Any]:
        pipeline = await self.pipeline(address, until, sentinel=sentinel)
        return await pipeline.ask_all(requests, until)

    def forget(self, address: Address) -> None:
        pipeline = self._pipelines.get(address)
        if pipeline is not None and pipeline.idle:
            pipeline.connection.close(ConnectionAbortedError("dropped while idle"))

    async def close(self) -> None:
        self._closed = True
        pipelines, self._pipelines = self._pipelines, {}
        for connection in (*(one.connection for one in pipelines.values()), *self._unready):
            connection.close(ConnectionAbortedError("the client was closed"))
