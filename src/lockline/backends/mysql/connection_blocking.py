"""A connection that a thread waits for, on PyMySQL's own."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable
from typing import Any

from pymysql.connections import Connection

from ...runtime import clock
from ...runtime.limits import let_out
from ..failures import DiedIdle, NoAnswer, Refused
from ..sockets import was_closed
from ..sql.calls import RoutineCall, Rows
from .commands import failed_login, is_of_the_library, read, written
from .connection import READ_ONLY, Attempts, MysqlConnection, refuse_plain
from .target import MysqlLogin, MysqlTarget


class _Punctual(Connection):  # type: ignore[misc]
    """The library's own, with one deadline for all answers of a login; it knows only one time for each of them."""

    until: float | None = None

    def _read_packet(self, *how: Any) -> Any:
        if self.until is not None:
            self._read_timeout: float = min(self._read_timeout, max(0.001, self.until - clock.now()))
        return super()._read_packet(*how)


class PyMysqlConnection(MysqlConnection):
    """Used by one thread at a time; after any error that was not undone as a whole it is closed, and what it left open with it."""

    _conn: _Punctual | None = None

    def open(self, until: float) -> float:
        """Connect and log in, to the first server that lets us."""
        attempts = Attempts(self._target)
        each, whole = self._times(until)
        for server in attempts(whole):
            try:
                self._connect(server, whole, each, attempts)
            except (NoAnswer, Refused) as problem:
                attempts.failed(problem)
            else:
                return self._opened(until)
        raise AssertionError("unreachable: the attempts raise when none is left")

    def _connect(self, server: MysqlLogin, until: float, each: float, attempts: Attempts) -> None:
        self._where = server.where
        left = max(0.001, min(until - clock.now(), each))
        # Nothing of this can be repeated by the library itself: it has no reconnect any more.
        conn = self._conn = _Punctual(
            **server.parameters, database=self._target.schema, connect_timeout=left, read_timeout=left, write_timeout=left,
            charset="utf8mb4", autocommit=True, program_name="lockline", defer_connect=True,
            # Unasked the library would read all authorities of this machine for each connection, and verify nothing.
            ssl_disabled=not server.tls,
        )  # fmt: skip
        conn.until = until
        before = sys.exception()
        try:
            conn.connect()
            refuse_plain(server, isinstance(conn._sock, ssl.SSLSocket))
            # Not as the library's init_command: some releases commit after that, which by completion_type ends the session.
            for greeting in self._target.greetings:
                conn.query(greeting)
            if len(self._target.servers) > 1:
                conn.query(READ_ONLY)
                attempts.refuse_replica(server, conn._result.rows)
        except BaseException as problem:
            conn._force_close()
            if not is_of_the_library(problem):
                raise
            let_out(problem, before)
            raise failed_login(problem, server.where, self._target.url) from problem
        conn.until = None

    def ask(self, call: RoutineCall, until: float) -> Rows:
        """The answer of one routine."""
        conn = self._conn
        left = self._time_to_ask(until)
        if conn is None or conn._sock is None or was_closed(conn._sock.fileno()):
            raise DiedIdle(self._where, "the server closed the connection while it was idle", sent=False)
        # Of the library's own: it has no deadline for one query, and its cursors cost as much again as the query.
        conn._read_timeout = conn._write_timeout = left
        asked = written(call)
        before = sys.exception()
        try:
            conn.query(asked)
            rows = conn._result.rows
            while conn._result.has_next:
                conn.next_result()
        except Exception as problem:
            if not is_of_the_library(problem):
                raise
            let_out(problem, before)
            raise self._failed(problem) from problem
        return read(call, rows)

    def _end(self) -> None:
        if self._conn is not None:
            self._conn._force_close()


def maker(target: MysqlTarget, login: float = 0.0) -> Callable[[], PyMysqlConnection]:
    """What makes new ones."""
    return lambda: PyMysqlConnection(target, login)
