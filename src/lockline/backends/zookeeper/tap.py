"""What kazoo's connection does and does not tell, heard by every client of Lockline that shares it."""

from __future__ import annotations

import threading
from typing import Any, Protocol

from kazoo.client import KazooClient

from ...core.clock import now

AT_ONCE = 200
"""How many requests travel together at most."""


class Hearer(Protocol):
    """Who wants to know."""

    def connection_made(self, sent: float, granted: float, asked: int) -> None:
        """The session was asked for at `sent` with a timeout of `asked` ms, and `granted` seconds were given."""

    def pinged(self, sent: float) -> None:
        """A ping goes out."""


class Tap:
    """Stands between a connection and kazoo's loop while anybody listens; after that all is as it was."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._hearers: tuple[Hearer, ...] = ()
        self._mutex = threading.Lock()

    @classmethod
    def of(cls, client: KazooClient) -> Tap:
        """The one tap of this client."""
        tap: Tap = vars(client._connection).setdefault("lockline_tap", cls(client))
        return tap

    def open(self, hearer: Hearer) -> None:
        """Tell this one too from now on."""
        connection = self._client._connection
        with self._mutex:
            if not self._hearers:
                self._connect = connection._connect
                self._ping = connection._send_ping
                self._send_request = connection._send_request
                # kazoo does not keep the timeout that the server granted, nor when it pinged; both happen in these two.
                connection._connect = self._observed_connect
                connection._send_ping = self._observed_ping
                connection._send_request = self._send_what_waits
            self._hearers += (hearer,)

    def close(self, hearer: Hearer) -> None:
        """Tell this one no more."""
        connection = self._client._connection
        with self._mutex:
            listened = bool(self._hearers)
            self._hearers = tuple(other for other in self._hearers if other is not hearer)
            if listened and not self._hearers:
                del connection._connect, connection._send_ping, connection._send_request

    def _observed_connect(self, host: Any, hostip: Any, port: Any) -> tuple[float, float]:
        sent = now()
        asked = self._client._session_timeout
        read_timeout, connect_timeout = self._connect(host, hostip, port)
        for hearer in self._hearers:
            # kazoo reads for two thirds of the timeout that was granted, in milliseconds.
            hearer.connection_made(sent, read_timeout * 1.5 / 1000, asked)
        return read_timeout, connect_timeout

    def _observed_ping(self, connect_timeout: float) -> None:
        sent = now()
        for hearer in self._hearers:
            hearer.pinged(sent)
        self._ping(connect_timeout)

    def _send_what_waits(self, read_timeout: float, connect_timeout: float) -> None:
        """kazoo sends one request for each time it looks round; requests that travel together go out together."""
        queue = self._client._queue
        together = min(len(queue), AT_ONCE)
        # Once even if nothing waits: that takes back the byte that woke kazoo. A second time would wait for a byte.
        self._send_request(read_timeout, connect_timeout)
        for _ in range(together - 1):
            if queue:
                self._send_request(read_timeout, connect_timeout)
