"""Marks alone, in a database: for resources that are checked at a door (HTTP, a script) by several machines."""

from __future__ import annotations

import math
import os
import socket
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from ...errors import BackendUnavailable, ConfigError, LocklineError
from ...runtime.fork import tell_after_fork
from ..door import Door
from ..rule import Mark, Offer
from .errors import is_of_a_driver, sqlstate
from .fence import SqlFence

A_CONNECTION = 10
"""Seconds for a connection and its login, where the URL does not say another `connect_timeout`."""

LATE_S: Final = 1.0
"""The server itself refuses in time. One that has said nothing for so much longer stands still, and the connection is cut."""


class SqlMarks(Door):
    """Marks in a table; whoever is inside keeps the row locked.

    Takes the path of a SQLite file, a `postgresql://` URL, or a function that opens a DB-API connection that begins its
    transactions by itself. SQLite locks the whole file: one entrant at a time, whatever the resource.
    """

    def __init__(self, source: str | os.PathLike[str] | Callable[[], Any], fence: SqlFence | None = None) -> None:
        self._fence = fence or SqlFence()
        self.exact = self._fence.exact
        self._connect, self._owned = _opener(source)
        self._ready = False
        self._idle: deque[Any] = deque(maxlen=16)
        self._of_the_parent: list[Any] = []
        tell_after_fork(self)

    def forked(self) -> None:
        """In a child: the connections are the parent's. They are kept, unused, since closing one would end it for both."""
        self._of_the_parent.extend(self._idle)
        self._idle = deque(maxlen=16)

    def admit(self, resource: str, offer: Offer, *, writes: bool, patience: float) -> Callable[[], None]:
        """Raise the mark and keep all others out until what is returned is called; StaleToken if it may not pass."""
        until = time.monotonic() + patience
        while True:
            reused, connection = self._take_idle()
            try:
                connection = connection or self._open(max(0.001, until - time.monotonic()))
                leave = self._way_out(connection)
                with _limited(connection, until - time.monotonic() + LATE_S):
                    self._enter(connection, resource, offer, writes=writes, until=until)
                # In here: one who is cut short before it has the way out is inside no more.
                return leave
            except BaseException as problem:
                self._drop(connection)
                if isinstance(problem, LocklineError) or not is_of_a_driver(problem):
                    raise
                if reused and not _is_busy(problem) and time.monotonic() < until:
                    # The server may have been restarted since, for all the others too. Nobody was let in by this one.
                    continue
                raise _unavailable(problem, resource, patience) from problem

    def _way_out(self, held: Any) -> Callable[[], None]:
        def leave() -> None:
            try:
                with _limited(held, A_CONNECTION):
                    held.commit()
            except BaseException:
                self._drop(held)
                raise
            self._idle.append(held)

        return leave

    def _take_idle(self) -> tuple[bool, Any]:
        """Whether there was a connection that nobody uses, and it."""
        try:
            return True, self._idle.pop()
        except IndexError:
            return False, None

    def _enter(self, connection: Any, resource: str, offer: Offer, *, writes: bool, until: float) -> None:
        enter = self._fence.check if writes else self._fence.enter
        _begin(connection, until)
        if self._fence.look(connection, resource, offer.lock) != Mark(offer.token, offer.grant):
            # The mark lasts before anybody is let in: the server may die inside, with the work done.
            connection.rollback()
            _begin(connection, until)
            enter(connection, resource, offer)
            connection.commit()
        connection.rollback()
        _begin(connection, until)
        enter(connection, resource, offer)

    def look(self, resource: str, lock: str) -> Mark | None:
        """The mark of this lock at the resource."""
        connection = None
        try:
            connection = self._open(A_CONNECTION)
            with _limited(connection, A_CONNECTION):
                found: Mark | None = self._fence.look(connection, resource, lock)
            return found
        except Exception as problem:
            if isinstance(problem, LocklineError) or not is_of_a_driver(problem):
                raise
            raise _unavailable(problem, resource, 0) from problem
        finally:
            self._drop(connection)

    def close(self) -> None:
        """Close the connections that nobody uses now."""
        while self._idle:
            self._drop(self._idle.pop())

    def _open(self, patience: float) -> Any:
        connection = self._connect(patience)
        if self._owned and not self._ready:
            try:
                with _limited(connection, patience + LATE_S):
                    self._fence.create(connection)
                    connection.commit()
            except BaseException:
                self._drop(connection)
                raise
            self._ready = True
        return connection

    def _drop(self, connection: Any) -> None:
        if connection is None:
            return
        try:
            _try(connection.rollback)
        finally:
            _try(connection.close)


def _try(end: Callable[[], object]) -> None:
    """What is thrown away may fail at that: the first error is the one to tell."""
    try:
        end()
    except Exception as problem:
        if not is_of_a_driver(problem):
            raise


def _opener(source: Any) -> tuple[Callable[[float], Any], bool]:
    """What opens a connection within so many seconds, and whether it is of our own making."""
    if callable(source):
        return (lambda _: source()), False
    text = os.fspath(source)
    scheme = urlsplit(text).scheme
    if scheme in ("postgresql", "postgres"):
        try:
            import psycopg
        except ModuleNotFoundError:
            raise ConfigError("'psycopg' is not installed; this needs: pip install 'psycopg[binary]'") from None
        asked = "connect_timeout" in text or "PGCONNECT_TIMEOUT" in os.environ
        # Unasked the library waits for minutes at a server that takes the connection and is silent.
        # libpq knows whole seconds, and two at least.
        return (
            lambda left: (
                psycopg.connect(text)
                if asked
                else psycopg.connect(text, connect_timeout=max(2, min(A_CONNECTION, math.ceil(left))))
            )
        ), True
    if scheme == "sqlite":
        text = text.removeprefix("sqlite://").removeprefix("/") if text.startswith("sqlite:///") else ""
    elif len(scheme) > 1:
        raise ConfigError(f"marks are kept in a file, at sqlite:///path or at postgresql://, not at {scheme}:")
    if not text:
        raise ConfigError("the file for the marks has no name; write a path, or sqlite:///path")
    if not os.path.isdir(os.path.dirname(text) or "."):
        raise ConfigError(f"the folder of {text!r} does not exist")
    return (lambda _: sqlite3.connect(text, check_same_thread=False)), True


def _begin(connection: Any, until: float) -> None:
    """Begin the transaction in a way that depends on no default of the role's, and leaves nothing in the session, which a pooler may share.

    Idle in it is whoever is served: a server that ends that session lets the next one in.
    """
    milliseconds = max(1, int((until - time.monotonic()) * 1000))
    if isinstance(connection, sqlite3.Connection):
        connection.execute(f"PRAGMA busy_timeout = {milliseconds}")
        return
    library = type(connection).__module__.partition(".")[0]
    if library not in ("psycopg", "psycopg2"):
        return
    statements = [
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
        f"SET LOCAL lock_timeout = {milliseconds}",
        "SET LOCAL idle_in_transaction_session_timeout = 0",
    ]
    if connection.info.server_version >= 170000:
        statements.append("SET LOCAL transaction_timeout = 0")
    with connection.cursor() as cursor:
        # Several statements in one trip cannot be prepared.
        cursor.execute("; ".join(statements), **({"prepare": False} if library == "psycopg" else {}))


@contextmanager
def _limited(connection: Any, seconds: float) -> Iterator[None]:
    """Cut the connection of a server that says nothing for so long; the drivers of PostgreSQL would wait for ever."""
    if not hasattr(connection, "fileno"):
        yield
        return
    cut = False

    def end() -> None:
        nonlocal cut
        cut = True
        with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, seconds), end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        # It may have begun in this moment: then this connection is no longer good.
        timer.join()
    if cut:
        raise TimeoutError("the server stands still")


def _is_busy(problem: BaseException) -> bool:
    return sqlstate(problem) == "55P03" or "database is locked" in str(problem)


def _unavailable(problem: BaseException, resource: str, patience: float) -> LocklineError:
    text = str(problem).strip()
    if isinstance(problem, sqlite3.DatabaseError) and "not a database" in text:
        return ConfigError(f"the file for the marks is no SQLite file; nothing was changed ({text})")
    if _is_busy(problem):
        return BackendUnavailable(f"another stayed inside the fence of {resource!r} for {patience:g} s ({text})")
    return BackendUnavailable(f"the marks of {resource!r} cannot be reached: {text}")
