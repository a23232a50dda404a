"""The few connections to a database that the tasks of a loop share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ...errors import ClientClosed
from ...runtime import clock
from ..failures import DiedIdle, NoAnswer
from .calls import RoutineCall, Rows


class LoopConnection(Protocol):
    """One connection, of one task's own for a call; `gone` once it is closed."""

    is_open: bool
    gone: bool

    async def open(self, until: float) -> float:
        """Connect and log in; until when what it was opened for may then be asked."""

    async def ask(self, call: RoutineCall, until: float) -> Rows:
        """The answer. After an exception other than a NoAnswer that was `said`, or a Refused, it is useless."""

    def close(self) -> None: ...


class LoopLink:
    """The way to the database, for all tasks of the loop that first asked."""

    def __init__(self, where: str, most: int, make: Callable[[], LoopConnection], login: float = 0.0) -> None:
        self._where = where
        self._most = most
        self._make = make
        self._login = login
        self._inherited: object = None
        self._begin()

    def _begin(self) -> None:
        self._free: deque[LoopConnection] = deque()
        self._made: set[LoopConnection] = set()
        self._line: deque[asyncio.Future[None]] = deque()
        self._closed = False

    async def _take(self, until: float) -> LoopConnection:
        """A connection of the caller's own; in order of arrival."""
        first = True
        while True:
            if self._closed:
                raise ClientClosed()
            if not first or not self._line:
                if self._free:
                    return self._free.pop()
                if len(self._made) < self._most:
                    connection = self._make()
                    self._made.add(connection)
                    return connection
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if first:
                self._line.append(turn)
            else:
                self._line.appendleft(turn)
            first = False
            called = False
            try:
                async with asyncio.timeout(max(0.0, until - clock.now())):
                    await turn
                called = True
            except TimeoutError as problem:
                raise NoAnswer(self._where, "every connection is in use", sent=False, late=True) from problem
            finally:
                if turn in self._line:
                    self._line.remove(turn)
                elif not called:
                    self._call_next()  # called, and in vain

    def _call_next(self) -> None:
        while self._line and (self._free or len(self._made) < self._most or self._closed):
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _drop(self, connection: LoopConnection) -> None:
        connection.close()
        self._made.discard(connection)
        self._call_next()

    async def ask(self, call: RoutineCall, until: float) -> Rows:
        while True:
            began = clock.now()
            connection = await self._take(max(until, began + self._login))
            if self._login:
                # Whoever stood behind a login that was slow finds a connection that is good: to cut its answer short would cost that too.
                until += clock.now() - began
            try:
                if not connection.is_open:
                    until = await connection.open(until)
                rows = await connection.ask(call, until)
            except DiedIdle:
                self._drop(connection)
                continue
            except BaseException as problem:
                # Its answer may still come: nobody may read that as the answer to something else.
                if connection.is_open and getattr(problem, "said", False) and not self._closed:
                    self._give_back(connection)
                else:
                    self._drop(connection)
                raise
            self._give_back(connection)
            return rows

    def _give_back(self, connection: LoopConnection) -> None:
        if self._closed or connection.gone:
            self._drop(connection)
            return
        self._free.append(connection)
        self._call_next()

    def forget(self) -> None:
        while self._free:
            self._drop(self._free.pop())

    def forked(self) -> None:
        # Kept, never closed: the parent's loop is a stranger here.
        self._inherited = (self._inherited, self._free, self._made, self._line)
        self._begin()

    def close(self) -> None:
        self._closed = True
        for connection in list(self._made):
            self._drop(connection)
        while self._line:
            self._call_next()
