"""Sessions whose step was given up: the server may go on waiting in it, and keeps a connection for as long as it does.

The server does not see that a client is gone while it waits for a lock or for a replica. So the client sends a cancel request, keeps the
session's socket until the server has ended the step, and opens no more sessions while too many have not ended.
"""

from __future__ import annotations

import select
from _thread import start_new_thread
from typing import Final

import psycopg
from psycopg.pq import ConnStatus, PollingStatus
from psycopg.pq.abc import PGconn

from ...runtime import clock
from ..failures import NoAnswer

CANCELLING_S: Final = 2.0
"""How long a cancel request may take."""
FORGOTTEN_S: Final = 30.0
"""After so long a session counts as ended: a server that was cut off says nothing more."""


class GivenUp:
    """Those of one link that have not ended."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sessions: dict[PGconn, tuple[str, float]] = {}
        """Where each is, and since when."""
        self._cancelling: set[PGconn] = set()

    @property
    def are_being_cancelled(self) -> bool:
        """Whether a cancel request is on its way."""
        return bool(self._cancelling)

    def refuse_more(self, where: str) -> None:
        """NoAnswer if so many have not ended there that there must not be another one."""
        oldest = clock.now() - FORGOTTEN_S
        for conn, (_, since) in list(self._sessions.items()):
            if since < oldest:
                self._sessions.pop(conn, None)
        count = sum(place == where for place, _ in list(self._sessions.values()))
        if count >= self._most:
            told = (
                f"the server has not ended {count} steps that were given up; see what they wait for in pg_stat_activity"
            )
            raise NoAnswer(where, told, sent=False, refused=True)

    def add(self, conn: PGconn, where: str, *, cancels: bool) -> None:
        """End the session in a thread of its own; `conn` must not be used by anything else any more."""
        self._sessions[conn] = where, clock.now()
        if cancels:
            self._cancelling.add(conn)
        try:
            start_new_thread(self._end, (conn, cancels))
        except RuntimeError:
            # No thread is to be had, or the interpreter is about to end.
            self._drop(conn)

    def _end(self, conn: PGconn, cancels: bool) -> None:
        try:
            if cancels:
                _cancel(conn)
                self._cancelling.discard(conn)
            _wait_for_end(conn)
        except (psycopg.Error, OSError, ValueError):
            pass  # the server closed it, or cannot be reached: there is nothing more to do
        finally:
            self._drop(conn)

    def _drop(self, conn: PGconn) -> None:
        self._cancelling.discard(conn)
        self._sessions.pop(conn, None)
        conn.finish()


def _cancel(conn: PGconn) -> None:
    """Ask the server to end the step; without libpq 17, whose request can be given up, the step ends by lock_timeout."""
    try:
        request = conn.cancel_conn()
    except psycopg.NotSupportedError:
        return
    until = clock.now() + CANCELLING_S
    try:
        request.start()
        while (state := request.poll()) not in (PollingStatus.OK, PollingStatus.FAILED):
            want = select.POLLIN if state == PollingStatus.READING else select.POLLOUT
            if not _is_ready(request.socket, want, until):
                return
    finally:
        request.finish()


def _wait_for_end(conn: PGconn) -> None:
    until = clock.now() + FORGOTTEN_S
    while conn.status != ConnStatus.BAD and conn.is_busy() and _is_ready(conn.socket, select.POLLIN, until):
        conn.consume_input()


def _is_ready(fd: int, want: int, until: float) -> bool:
    poll = select.poll()
    poll.register(fd, want)
    return bool(poll.poll(max(0.0, until - clock.now()) * 1000))
