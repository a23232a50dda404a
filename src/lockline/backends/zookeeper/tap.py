"""What kazoo's connection does and does not tell, heard by every client of Lockline that shares it.

It also is the way by which requests go out. kazoo wakes its thread with one byte per request through a pipe of some 280 bytes,
and waits where the pipe is full. A burst from many threads or tasks fills it, and where kazoo's own thread asks for something too
(what a watch told has consequences) it would wait for itself, and everybody for it. Here a full pipe is as good as one more byte:
whoever reads it looks at all that waits.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections import deque
from typing import Any, Protocol

from kazoo import exceptions as problems
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState

from ...runtime.clock import now
from .batch import Answer

AT_ONCE = 200
"""How many requests travel together at most."""
GRUDGE = 30.0
"""Seconds for which a server that fell silent is asked after all others."""
_AT_ONCE_OR_NOT: int = getattr(socket, "MSG_DONTWAIT", 0)
_REFUSED = {
    KeeperState.AUTH_FAILED: problems.AuthFailedError,
    KeeperState.CLOSED: problems.ConnectionClosedError,
    KeeperState.EXPIRED_SESSION: problems.SessionExpiredError,
}


class Hearer(Protocol):
    """Who wants to know."""

    def connection_made(self, sent: float, granted: float, asked: int) -> None:
        """The session was asked for at `sent` with a timeout of `asked` ms, and `granted` seconds were given."""


class Tap:
    """Stands between a connection and kazoo's loop while anybody listens; after that all is as it was."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        kind, connection = type(client._connection), client._connection
        self._connect = kind._connect.__get__(connection)
        self._expand_hosts = kind._expand_client_hosts.__get__(connection)
        self._send_request = kind._send_request.__get__(connection)
        self._hearers: tuple[Hearer, ...] = ()
        self._mutex = threading.Lock()
        self._server: tuple[str, int] | None = None
        self._silent: dict[tuple[str, int], float] = {}
        self._servers: int | None = None
        self._failures = 0
        self._urgent: deque[tuple[Any, Any]] = deque()

    @classmethod
    def of(cls, client: KazooClient) -> Tap:
        """The one tap of this client."""
        tap: Tap = vars(client._connection).setdefault("lockline_tap", cls(client))
        return tap

    @property
    def unreachable(self) -> bool:
        """Whether every server there is has refused a connection since the last one that took it."""
        return self._servers is not None and self._failures >= self._servers

    def open(self, hearer: Hearer) -> None:
        """Tell this one too from now on."""
        connection = self._client._connection
        with self._mutex:
            if not self._hearers:
                # kazoo does not keep the timeout that the server granted, nor which server that was.
                connection._connect = self._observed_connect
                connection._expand_client_hosts = self._sorted_hosts
                connection._send_request = self._send_what_waits
            self._hearers += (hearer,)

    def close(self, hearer: Hearer) -> None:
        """Tell this one no more."""
        connection = self._client._connection
        with self._mutex:
            listened = bool(self._hearers)
            self._hearers = tuple(other for other in self._hearers if other is not hearer)
            if not listened or self._hearers:
                return
            del connection._connect, connection._expand_client_hosts
            running = connection._connection_routine
            if running is None or not running.is_alive():
                del connection._send_request
        # The last step is kazoo's own, when nothing waits.
        self._ring()

    # -- requests go out -----------------------------------------------------------------------------

    def send(self, requests: list[tuple[Any, Any]], *, urgent: bool = False) -> None:
        """Have these sent, and their answers put where they belong; one that is urgent before all that waits.

        Never waits, in whatever thread.
        """
        refused = _REFUSED.get(self._client._state)
        if refused is None:
            # Only kazoo's own thread may put something to the front of its queue.
            (self._urgent if urgent and self._hearers else self._client._queue).extend(requests)
            if self._ring():
                return
            refused = problems.ConnectionClosedError
        for _, answer in requests:
            answer.set_exception(refused())

    def _ring(self) -> bool:
        bell = self._client._connection._write_sock
        try:
            bell.send(b"\0", _AT_ONCE_OR_NOT)
        except BlockingIOError:
            pass
        except (OSError, AttributeError):
            # Closed meanwhile.
            return False
        return True

    def _send_what_waits(self, read_timeout: float, connect_timeout: float) -> None:
        """kazoo sends one request for each time it looks round; what waits goes out together."""
        queue = self._client._queue
        while self._urgent:
            queue.appendleft(self._urgent.popleft())
        try:
            # First, so that whoever comes from here on is heard again.
            self._client._connection._read_sock.recv(65536, _AT_ONCE_OR_NOT)
        except BlockingIOError:
            pass
        for _ in range(AT_ONCE) if self._hearers else itertools.count():
            if not queue:
                break
            answer = queue[0][1]
            if isinstance(answer, Answer):
                answer.leaves(now())
            # kazoo takes one back for each.
            self._ring()
            self._send_request(read_timeout, connect_timeout)
        if queue:
            self._ring()
        elif not self._hearers:
            with self._mutex:
                if not self._hearers:
                    # Without us kazoo takes back one byte for each request; whatever comes from here on brings its own.
                    vars(self._client._connection).pop("_send_request", None)

    # -- servers -------------------------------------------------------------------------------------

    def _observed_connect(self, host: Any, hostip: Any, port: Any) -> tuple[float, float]:
        sent = now()
        asked = self._client._session_timeout
        self._server = (hostip, port)
        try:
            read_timeout, connect_timeout = self._connect(host, hostip, port)
        except problems.ConnectionDropped:
            self._failures += 1
            raise
        except BaseException:
            # It took the connection and said nothing, or said no: there is somebody.
            self._failures = 0
            raise
        self._failures = 0
        for hearer in self._hearers:
            # kazoo reads for two thirds of the timeout that was granted, in milliseconds.
            hearer.connection_made(sent, read_timeout * 1.5 / 1000, asked)
        return read_timeout, connect_timeout

    def _sorted_hosts(self) -> list[tuple[Any, Any, Any]]:
        """As kazoo's, in no order of its own, but those that fell silent lately come last."""
        hosts: list[tuple[Any, Any, Any]] = self._expand_hosts()
        self._servers = len(hosts)
        since = now() - GRUDGE
        silent = {server: moment for server, moment in self._silent.items() if moment > since}
        return sorted(hosts, key=lambda host: silent.get(host[1:], 0.0))

    def leave(self, line: Any) -> None:
        """The server at the end of this connection gives no answers: go to another one."""
        if self._client._connection._socket is line:
            if self._server is not None:
                self._silent[self._server] = now()
            hang_up(line)


def hang_up(line: Any) -> None:
    """Break a connection; kazoo notices at once and makes the next."""
    try:
        if line is not None:
            line.shutdown(2)
    except OSError:
        pass
