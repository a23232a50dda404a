"""A connection that a thread waits for."""

from __future__ import annotations

import select
from collections.abc import Callable, Generator
from typing import TypeVar

from ...runtime import clock
from ..failures import NoAnswer, Refused
from ..sql.calls import RoutineCall, Rows
from .connection import Manner, PostgresqlSession
from .given_up import GivenUp
from .target import PostgresqlLogin

T = TypeVar("T")


class BlockingSession(PostgresqlSession):
    """Used by one thread at a time."""

    def __init__(
        self,
        servers: tuple[PostgresqlLogin, ...],
        manner: Manner,
        login: float = 0.0,
        given_up: GivenUp | None = None,
    ) -> None:
        super().__init__(servers, manner, login, given_up)
        self._poll = select.poll()
        self._polled = (-1, 0)
        """What it is set to wait for."""

    def open(self, until: float) -> float:
        """Connect and log in, to the first server that lets us."""
        each, whole = min(self._patience, until - clock.now()), self.whole_login(until)
        for server, share in self.shares(whole):
            try:
                self._drive(self.connecting(server), share, sent=False, each=each)
                break
            except (NoAnswer, Refused):
                if self.give_up(whole):
                    raise
        if self.manner.pooled is None:
            self.manner.pooled = self.is_pooled(self.query(b"SELECT pg_backend_pid()", whole))
        return self.after_login(until)

    def ask(self, call: RoutineCall, until: float) -> Rows:
        """The answer of one routine."""
        return self._drive(self.asking(call), until)

    def query(self, text: bytes, until: float) -> list[list[bytes | None]]:
        """The rows of a statement of our own."""
        return self._drive(self.querying(text), until)

    def _drive(
        self, steps: Generator[tuple[int, int], None, T], until: float, *, sent: bool = True, each: float | None = None
    ) -> T:
        each = self.each_answer(until, each)
        try:
            while True:
                waits_for = next(steps)
                if waits_for != self._polled:
                    self._poll = select.poll()
                    self._poll.register(*waits_for)
                    self._polled = waits_for
                # For each answer anew: a login is several, and a server that answers slowly is none that is silent.
                if not self._poll.poll(max(0.0, min(until - clock.now(), each)) * 1000):
                    raise NoAnswer(self.where, "no answer in time", sent=sent)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


def maker(
    servers: tuple[PostgresqlLogin, ...], manner: Manner, login: float, given_up: GivenUp
) -> Callable[[], BlockingSession]:
    """What makes new ones."""
    return lambda: BlockingSession(servers, manner, login, given_up)
