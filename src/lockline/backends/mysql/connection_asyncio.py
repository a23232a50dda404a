"""A connection that the loop waits for, on aiomysql's own: no task reads it, and none can be cancelled by whoever cancels all he finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiomysql
import pymysql
from pymysql.constants import CLIENT

from ...runtime import clock
from ..failures import DiedIdle, NoAnswer, Refused
from ..sockets import was_closed
from ..sql.calls import RoutineCall, Rows
from .commands import NO_TLS, failed_login, is_of_the_library, read, written
from .connection import READ_ONLY, Attempts, MysqlConnection, refuse_plain
from .target import MysqlLogin, MysqlTarget


class _Quiet(aiomysql.Connection):  # type: ignore[misc]
    patience: float | None = None
    """How long each answer may take, while there are several to one call: a server that answers slowly is none that is silent."""

    async def _read_bytes(self, num_bytes: int) -> bytes:
        async with asyncio.timeout(self.patience):
            return await super()._read_bytes(num_bytes)  # type: ignore[no-any-return]

    async def _get_server_information(self) -> None:
        await super()._get_server_information()
        if self._ssl_context and not self.server_capabilities & CLIENT.SSL:
            # The library would go on, and hear nothing more of a server that does not understand it.
            raise pymysql.err.OperationalError(NO_TLS, "the server does not speak TLS")

    def __del__(self) -> None:
        """Nothing: one that a child inherited is the parent's, and to close it would end what the parent's loop hears."""


class AioMysqlConnection(MysqlConnection):
    """Used by one task at a time, on one loop; after any error that was not undone as a whole it is closed."""

    _conn: aiomysql.Connection | None = None

    async def open(self, until: float) -> float:
        """Connect and log in, to the first server that lets us."""
        attempts = Attempts(self._target)
        each, whole = self._times(until)
        for server in attempts(whole):
            try:
                await self._connect(server, whole - clock.now(), each, attempts)
            except (NoAnswer, Refused) as problem:
                attempts.failed(problem)
            else:
                return self._opened(until)
        raise AssertionError("unreachable: the attempts raise when none is left")

    async def _connect(self, server: MysqlLogin, left: float, each: float, attempts: Attempts) -> None:
        self._where = server.where
        conn = self._conn = _Quiet(
            **server.parameters, db=self._target.schema, charset="utf8mb4", autocommit=True, program_name="lockline", connect_timeout=each,
        )  # fmt: skip
        conn.patience = each
        try:
            async with asyncio.timeout(left):
                await conn._connect()
                refuse_plain(server, conn._writer.get_extra_info("ssl_object") is not None)
                # Not as the library's init_command: it commits after that, which by completion_type ends the session or begins a transaction.
                for greeting in self._target.greetings:
                    await conn.query(greeting)
                if len(self._target.servers) > 1:
                    await conn.query(READ_ONLY)
                    attempts.refuse_replica(server, conn._result.rows)
        except BaseException as problem:
            # Also one that was cut short: the library itself leaves that open.
            _close(conn)
            if not is_of_the_library(problem):
                raise
            reason = problem.__cause__ or problem
            if isinstance(problem, TimeoutError) or isinstance(reason, TimeoutError):
                raise NoAnswer(server.where, "no answer in time", sent=False, refused=True) from problem
            raise failed_login(reason, server.where, self._target.url) from problem
        conn.patience = None

    async def ask(self, call: RoutineCall, until: float) -> Rows:
        """The answer of one routine."""
        conn = self._conn
        left = self._time_to_ask(until)
        if conn is None or conn.closed or conn._reader.at_eof() or was_closed(_fd(conn)):
            raise DiedIdle(self._where, "the server closed the connection while it was idle", sent=False)
        asked = written(call)
        try:
            async with asyncio.timeout(left):
                # Not by a cursor: that asks for warnings, in a round trip of its own.
                await conn.query(asked)
                rows = conn._result.rows
                while conn._result.has_next:
                    await conn.next_result()
        except TimeoutError as problem:
            self.close()
            raise NoAnswer(self._where, "no answer in time", sent=True) from problem
        except Exception as problem:
            if not is_of_the_library(problem):
                raise
            if self.gone:
                raise NoAnswer(self._where, "the client was closed", sent=True) from problem
            raise self._failed(problem) from problem
        return read(call, rows)

    def _end(self) -> None:
        if self._conn is not None:
            _close(self._conn)


def _fd(conn: aiomysql.Connection) -> int:
    return int(conn._writer.get_extra_info("socket").fileno())


def _close(conn: aiomysql.Connection) -> None:
    try:
        if conn._writer is not None:
            # At once: a farewell in TLS waits for the other's, and the loop may be over by then.
            conn._writer.transport.abort()
        conn.close()
    except RuntimeError:
        pass  # its loop is closed, and with it all that it had


def maker(target: MysqlTarget, login: float = 0.0) -> Callable[[], AioMysqlConnection]:
    """What makes new ones."""
    return lambda: AioMysqlConnection(target, login)
