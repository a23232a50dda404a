"""The few connections to a database that threads share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...errors import ClientClosed
from ...runtime import clock
from ..failures import DiedIdle, NoAnswer
from ..pool import ConnectionPool
from .calls import RoutineCall, Rows


class ThreadConnection(Protocol):
    """One connection, of one thread's own for a call.

    It is there before it is open, so that whoever counts connections counts those that are being made; `gone` once it is closed.
    """

    is_open: bool
    gone: bool

    def open(self, until: float) -> float:
        """Connect and log in; until when what it was opened for may then be asked."""

    def ask(self, call: RoutineCall, until: float) -> Rows:
        """The answer. After an exception other than a NoAnswer that was `said`, or a Refused, it is useless."""

    def close(self) -> None: ...


class ThreadLink(ConnectionPool[ThreadConnection]):
    """The way to the database, for threads."""

    def __init__(self, where: str, most: int, make: Callable[[], ThreadConnection], login: float = 0.0) -> None:
        super().__init__(most, make)
        self._where = where
        self._login = login
        self._arguments = (where, most, make, login)

    def _take(self, until: float) -> tuple[ThreadConnection, float]:
        if self._closed:
            raise ClientClosed()
        began = clock.now()
        connection = self.take(max(until, began + self._login))
        if connection is None:
            raise NoAnswer(self._where, "every connection is in use", sent=False, late=True)
        if self._login:
            # Whoever stood behind a login that was slow finds a connection that is good: to cut its answer short would cost that too.
            until += clock.now() - began
        if not connection.is_open:
            try:
                until = connection.open(until)
            except BaseException:
                self.drop(connection)
                raise
        return connection, until

    async def ask(self, call: RoutineCall, until: float) -> Rows:
        while True:
            try:
                connection, until = self._take(until) if self.line else (self.free.pop(), until)
            except IndexError:
                connection, until = self._take(until)
            try:
                rows = connection.ask(call, until)
            except DiedIdle:
                self.drop(connection)
                continue
            except BaseException as problem:
                # Its answer may still come: nobody may read that as the answer to something else.
                if getattr(problem, "said", False):
                    self.give_back(connection)
                else:
                    self.drop(connection)
                raise
            # Not a part of the `try`: once it is among the free ones it is no longer ours to drop.
            self.give_back(connection)
            if self._closed:
                self.forget()
            return rows

    def forked(self) -> None:
        # The connections are not closed: their end would be a word to the parent's server.
        ThreadLink.__init__(self, *self._arguments)
