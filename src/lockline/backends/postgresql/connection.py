"""libpq's own connection, step by step: what waits for a socket is the caller's, a thread or a loop."""

from __future__ import annotations

import select
from collections.abc import Callable, Generator, Iterator
from typing import Final

import psycopg
from psycopg import pq
from psycopg.pq.abc import PGconn, PGresult

from ...runtime import clock
from ..failures import DiedIdle, NoAnswer
from ..sockets import was_closed
from ..sql.calls import RoutineCall, Rows
from .commands import STANDBY, UNDO, code_of, failed_login, in_full, problem_of, read, statements, written
from .functions import WRONG_LEVEL
from .given_up import GivenUp
from .target import PostgresqlLogin

READ: Final = select.POLLIN
WRITE: Final = select.POLLOUT
Waits = Generator[tuple[int, int], None, None]
"""Yields a socket and what has to be waited for there."""

PREPARED_AT: Final = 3
"""How often a statement is sent before it is worth a trip to prepare it."""
NOT_PREPARED: Final = "26000"
IDLE: Final = 0.05
"""Seconds after which a connection may have been closed unnoticed: then it is looked at before it is used."""
_GOOD: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Manner:
    """What is known of the sessions that this client gets."""

    __slots__ = ("alone", "first", "pooled", "statements", "url")

    def __init__(self, schema: str, url: str) -> None:
        self.statements = statements(schema)
        self.url = url
        self.alone = False
        """Transactions begin at another level there, or may not write: each step begins its own."""
        self.first = 0
        """Which server to begin with."""
        self.pooled: bool | None = None
        """A pooler stands between: what one session is told, another may ask. None until it was found out."""


class PostgresqlSession:
    """One connection; after any error that was not `said` it is useless."""

    def __init__(
        self,
        servers: tuple[PostgresqlLogin, ...],
        manner: Manner,
        login: float = 0.0,
        given_up: GivenUp | None = None,
    ) -> None:
        self._servers = servers
        self._given_up = given_up
        """Where it goes if it is closed in the middle of a step."""
        self._patience = servers[0].patience
        self.manner = manner
        self._login = login
        self.where = ""
        self._conn: PGconn | None = None
        self.is_open = self.gone = False
        self._tried = 0
        self._used = 0.0
        self._uses: dict[str, int] = {}
        self._prepared: set[str] = set()

    @property
    def conn(self) -> PGconn:
        assert self._conn is not None
        return self._conn

    def whole_login(self, until: float) -> float:
        """Until when a login may go on whose caller has time until then."""
        return max(until, clock.now() + self._login) if self._login else until

    def after_login(self, until: float) -> float:
        """And until when he may then ask: what was logged in for takes one more answer."""
        return max(until, clock.now() + self._patience) if self._login else until

    def shares(self, until: float) -> Iterator[tuple[PostgresqlLogin, float]]:
        """The servers, first the one that was last found good, and until when each may take: one that is frozen leaves time for the next."""
        servers, first, self._tried = self._servers, self.manner.first, 0
        for at in range(len(servers)):
            self._tried = at + 1
            now = clock.now()
            self.manner.first = (first + at) % len(servers)
            yield servers[self.manner.first], now + (until - now) / (len(servers) - at)

    def give_up(self, until: float) -> bool:
        """Whether there is none left to try; whoever tries next begins with the next one."""
        self.manner.first = (self.manner.first + 1) % len(self._servers)
        return self._tried == len(self._servers) or clock.now() >= until

    def each_answer(self, until: float, each: float | None) -> float:
        """How long each answer may take; NoAnswer where the time is over."""
        if clock.now() >= until:
            raise NoAnswer(self.where or self._servers[0].where, "no time left to ask", sent=False, late=True)
        return self._patience if each is None else each

    def connecting(self, server: PostgresqlLogin, **more: str) -> Waits:
        """Connect and log in."""
        self.where = server.where
        if self._given_up is not None:
            self._given_up.refuse_more(server.where)
        conn = self._conn = pq.PGconn.connect_start(server.conninfo(**more))
        while True:
            if conn.status == pq.ConnStatus.BAD:
                raise self._no_login(conn, server)
            state = conn.connect_poll()
            if state == pq.PollingStatus.OK:
                break
            if state == pq.PollingStatus.FAILED:
                raise self._no_login(conn, server)
            yield conn.socket, READ if state == pq.PollingStatus.READING else WRITE
        conn.nonblocking = 1
        self.is_open = True

    def _no_login(self, conn: PGconn, server: PostgresqlLogin) -> Exception:
        # Not by get_error_message(): that leaves out the severity, by which the server's own words are known.
        return failed_login(conn.error_message.decode("utf8", "replace"), server.where, self.manner.url)

    def asking(self, call: RoutineCall) -> Generator[tuple[int, int], None, Rows]:
        """The answer of one routine."""
        values = [written(value) for value in call.args]
        statement = self.manner.statements[call.routine]
        conn = self.conn
        if not self.manner.alone:
            if call.routine in self._prepared or (yield from self._preparing(call.routine)):
                self._send(conn.send_query_prepared, call.routine.encode(), values)
            else:
                self._send(conn.send_query_params, statement, values)
            result = yield from self.answering()
            if result.status in _GOOD:
                return read(call, result)
            code = code_of(result)
            if code == NOT_PREPARED:
                # Nothing was done. Another session has answered than the one that prepared it.
                self.manner.pooled = True
                self._prepared.clear()
                return (yield from self.asking(call))
            if code != WRONG_LEVEL and code not in STANDBY:
                raise problem_of(result, self.where, self.manner.url)
            # Nothing was done. Perhaps it is only how this role's transactions begin.
            self.manner.alone = True
        self._send(conn.send_query, in_full(conn, statement, values))
        rows: Rows = ()
        problem: Exception | None = None
        for result in (yield from self._results()):
            if result.status == pq.ExecStatus.TUPLES_OK:
                rows = read(call, result)
            elif result.status not in _GOOD:
                problem = problem_of(result, self.where, self.manner.url)
        if problem is not None:
            if conn.transaction_status != pq.TransactionStatus.IDLE:
                self._send(conn.send_query, UNDO)
                yield from self._results()
            raise problem
        return rows

    def _preparing(self, routine: str) -> Generator[tuple[int, int], None, bool]:
        """Whether the server knows the statement by name from now on: for one that comes again and again, in a session of our own."""
        self._uses[routine] = uses = self._uses.get(routine, 0) + 1
        if uses < PREPARED_AT or self.manner.pooled is not False:
            return False
        self._send(self.conn.send_prepare, routine.encode(), self.manner.statements[routine])
        if (yield from self.answering()).status not in _GOOD:
            return False
        self._prepared.add(routine)
        return True

    def querying(self, text: bytes) -> Generator[tuple[int, int], None, list[list[bytes | None]]]:
        """The rows of a statement of our own."""
        self._send(self.conn.send_query, text)
        result = yield from self.answering()
        if result.status not in _GOOD:
            raise problem_of(result, self.where, self.manner.url)
        return [[result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)]

    def _send(self, send: Callable[..., None], *args: object) -> None:
        now = clock.now()
        if now > self._used + IDLE and was_closed(self.conn.socket):
            raise DiedIdle(self.where, "the server closed the connection while it was idle", sent=False)
        self._used = now
        try:
            send(*args)
        except psycopg.Error as problem:
            raise NoAnswer(self.where, problem, sent=True) from problem

    def answering(self) -> Generator[tuple[int, int], None, PGresult]:
        """The result of the one statement that was sent."""
        return (yield from self._results())[-1]

    def _results(self) -> Generator[tuple[int, int], None, list[PGresult]]:
        conn = self.conn
        results: list[PGresult] = []
        try:
            while conn.flush():
                yield conn.socket, READ | WRITE
                conn.consume_input()
            while True:
                while conn.is_busy():
                    yield conn.socket, READ
                    conn.consume_input()
                result = conn.get_result()
                if result is None:
                    break
                results.append(result)
        except psycopg.Error as problem:
            raise NoAnswer(self.where, problem, sent=True) from problem
        if conn.status == pq.ConnStatus.BAD:
            raise self._broken(results)
        return results

    def _broken(self, results: list[PGresult]) -> Exception:
        """The server ended the session: why, if it said so."""
        for result in results:
            if result.status not in _GOOD and code_of(result):
                return problem_of(result, self.where, self.manner.url)
        return NoAnswer(self.where, self.conn.get_error_message(), sent=True)

    def heard(self) -> list[str]:
        """What was pushed and has arrived."""
        conn = self.conn
        try:
            conn.consume_input()
            found = []
            while (notify := conn.notifies()) is not None:
                found.append(bytes(notify.extra).decode())
        except psycopg.Error as problem:
            raise NoAnswer(self.where, problem, sent=False) from problem
        return found

    def fileno(self) -> int | None:
        """Its socket, as long as it has one."""
        try:
            return self.conn.socket
        except psycopg.Error:
            return None

    def ping(self) -> bool:
        """Ask for a sign of life, without waiting for it; whether that could be sent."""
        try:
            self.conn.send_query(b"SELECT 1")
            self.conn.flush()
        except psycopg.Error:
            return False
        return True

    def answered(self) -> bool:
        """Whether the sign of life is there; it is read away."""
        conn = self.conn
        if conn.transaction_status != pq.TransactionStatus.ACTIVE or conn.is_busy():
            return False
        while conn.get_result() is not None:
            if conn.is_busy():
                break
        return True

    def is_pooled(self, told: list[list[bytes | None]]) -> bool:
        """Whether the session that answers is another than the one that let us in: a pooler gives each step the next one that is free."""
        return told[0][0] != str(self.conn.backend_pid).encode()

    def close(self) -> None:
        """Close it; a step that is under way is cancelled before."""
        if self.gone:
            return
        self.gone = True
        conn = self._conn
        if conn is None:
            return
        if self._given_up is None or not self.is_open or conn.transaction_status != pq.TransactionStatus.ACTIVE:
            conn.finish()
        else:
            # A pooler may have given the server's session to another client by the time that a cancel request is there.
            self._given_up.add(conn, self.where, cancels=not self.manner.pooled)
