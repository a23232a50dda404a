"""kazoo's connection as Lockline uses it: requests travel together, in both directions, and none waits for another thread.

kazoo wakes its thread with one byte per request through a pipe of some 280 bytes, and waits where the pipe is full. A burst from
many threads or tasks fills it, and where kazoo's own thread asks for something too (what a watch told has consequences) it would
wait for itself, and everybody for it. Here a full pipe is as good as one more byte: whoever reads it looks at all that waits.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

from kazoo import exceptions as problems
from kazoo.client import KazooClient
from kazoo.protocol.states import KeeperState

from ...runtime.clock import now
from .answers import AnswerSlot
from .exchange import AT_ONCE, AT_ONCE_OR_NOT, Exchange
from .handler import LeanHandler
from .session import PathBudget

GRUDGE: Final = 30.0
"""Seconds for which a server that fell silent is asked after all others."""
NO_ANSWER: Final = (AttributeError, LookupError, RuntimeError, TypeError, ValueError, struct.error)
"""What kazoo stumbles over when it reads what is no answer, or not to what was asked: a number, a length, a letter."""
_REFUSED: Final = {
    KeeperState.AUTH_FAILED: problems.AuthFailedError,
    KeeperState.CLOSED: problems.ConnectionClosedError,
    KeeperState.EXPIRED_SESSION: problems.SessionExpiredError,
}


Connected = Callable[[float, float, int], None]
"""Told that the session was asked for at that moment, how many seconds were granted, and how many milliseconds asked for."""


class KazooHooks:
    """Stands between a connection and kazoo's loop while anybody listens; after that all is as it was.

    What the connection does is heard by every client of Lockline that shares it.
    """

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        kind, connection = type(client._connection), client._connection
        self._connect = kind._connect.__get__(connection)
        self._attempt = kind._connect_attempt.__get__(connection)
        self._expand_hosts = kind._expand_client_hosts.__get__(connection)
        self._send_request = kind._send_request.__get__(connection)
        self._listeners: tuple[Connected, ...] = ()
        self._mutex = threading.Lock()
        self._server: tuple[str, int] | None = None
        self._silent: dict[tuple[str, int], float] = {}
        self._servers: int | None = None
        self._failures = 0
        self._exchange = Exchange(client)
        self.budget = PathBudget()

    @classmethod
    def of(cls, client: KazooClient) -> KazooHooks:
        """The one set of hooks of this client."""
        hooks: KazooHooks = vars(client._connection).setdefault("lockline_hooks", cls(client))
        return hooks

    @property
    def unreachable(self) -> bool:
        """Whether every server there is has refused a connection since the last one that took it."""
        return self._servers is not None and self._failures >= self._servers

    def open(self, listener: Connected) -> None:
        """Tell this one too from now on."""
        connection = self._client._connection
        with self._mutex:
            if not self._listeners:
                # kazoo does not keep the timeout that the server granted, nor which server that was.
                connection._connect = self._observed_connect
                connection._connect_attempt = self._surviving_attempt
                connection._expand_client_hosts = self._sorted_hosts
                connection._send_request = self._send_what_waits
                if isinstance(self._client.handler, LeanHandler):
                    self._client.handler.exchange = self._exchange.run
            self._listeners += (listener,)

    def close(self, listener: Connected) -> None:
        """Tell this one no more."""
        connection = self._client._connection
        with self._mutex:
            listened = bool(self._listeners)
            self._listeners = tuple(other for other in self._listeners if other != listener)
            if not listened or self._listeners:
                return
            del connection._connect, connection._connect_attempt, connection._expand_client_hosts
            running = connection._connection_routine
            if running is None or not running.is_alive():
                del connection._send_request
        # The last step is kazoo's own, when nothing waits.
        self._wake_kazoo()

    # -- requests go out -----------------------------------------------------------------------------

    def send(self, requests: list[tuple[Any, Any]], *, urgent: bool = False) -> None:
        """Have these sent, and their answers put where they belong; one that is urgent before all that waits.

        Never waits, in whatever thread.
        """
        refused = _REFUSED.get(self._client._state)
        if refused is None:
            # Only kazoo's own thread may put something to the front of its queue.
            (self._exchange.urgent if urgent and self._listeners else self._client._queue).extend(requests)
            if self._exchange.is_at_it() or self._wake_kazoo():
                return
            refused = problems.ConnectionClosedError
        for _, answer in requests:
            answer.set_exception(refused())

    def _wake_kazoo(self) -> bool:
        try:
            self._client._connection._write_sock.send(b"\0", AT_ONCE_OR_NOT)
        except BlockingIOError:
            pass
        except (OSError, AttributeError):
            # Closed meanwhile.
            return False
        return True

    def _send_what_waits(self, read_timeout: float, connect_timeout: float) -> None:
        """kazoo sends one request for each time it looks round; what waits goes out together."""
        queue = self._client._queue
        if self._exchange.has_sent:
            self._exchange.has_sent = False
            return
        self._exchange.put_urgent_first()
        # First, so that whoever comes from here on is heard again.
        self._exchange.hush(self._client._connection._read_sock)
        ours = bytearray()
        for _ in range(AT_ONCE) if self._listeners else itertools.count():
            if not queue:
                break
            if isinstance(queue[0][1], AnswerSlot):
                ours += self._exchange.take_next()
                continue
            # In the order in which they were asked for, and kazoo takes one byte back for each of its own.
            self._write(ours, connect_timeout)
            self._wake_kazoo()
            self._send_request(read_timeout, connect_timeout)
        self._write(ours, connect_timeout)
        if queue:
            self._wake_kazoo()
        elif not self._listeners:
            with self._mutex:
                if not self._listeners:
                    # Without us kazoo takes back one byte for each request; whatever comes from here on brings its own.
                    vars(self._client._connection).pop("_send_request", None)

    def _write(self, data: bytearray, timeout: float) -> None:
        """In one piece: a system call for each request costs us and the server more than the request itself."""
        if data:
            self._client._connection._write(bytes(data), timeout)
            data.clear()

    # -- servers -------------------------------------------------------------------------------------

    def _surviving_attempt(self, *where: Any) -> Any:
        """As kazoo's, but what comes and is no answer ends the connection, and not the thread that would make the next."""
        try:
            return self._attempt(*where)
        except NO_ANSWER:
            # It is in kazoo's log. To whoever waits it is as if the line had broken.
            if self._client._state != KeeperState.CONNECTING:
                self._client._session_callback(KeeperState.CONNECTING)
            return None

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
        for listener in self._listeners:
            # kazoo reads for two thirds of the timeout that was granted, in milliseconds.
            listener(sent, read_timeout * 1.5 / 1000, asked)
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
