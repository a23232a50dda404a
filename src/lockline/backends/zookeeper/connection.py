"""kazoo's connection as Lockline uses it: requests travel together, in both directions, and none waits for another thread.

kazoo wakes its thread with one byte per request through a pipe of some 280 bytes, and waits where the pipe is full. A burst from
many threads or tasks fills it, and where kazoo's own thread asks for something too (what a watch told has consequences) it would
wait for itself, and everybody for it. Here a full pipe is as good as one more byte: whoever reads it looks at all that waits.
"""

from __future__ import annotations

import itertools
import logging
import select
import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from kazoo import exceptions as problems
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KeeperState

from ...runtime import Signal
from ...runtime.clock import now

log = logging.getLogger("lockline.zookeeper")

AT_ONCE: Final = 200
"""How many requests travel together at most."""
GRUDGE: Final = 30.0
"""Seconds for which a server that fell silent is asked after all others."""
STUCK: Final = 5.0
"""Seconds after which a socket that takes no more bytes is given up."""
CUT: Final = (
    problems.ConnectionLoss,
    problems.SessionExpiredError,
    problems.ConnectionClosedError,
    problems.SessionMovedError,
    problems.OperationTimeoutError,
)
"""No answer: the request may have been applied or not."""
DECIDED: Final = (problems.NoNodeError, problems.NodeExistsError, problems.BadVersionError)
"""A no to a write that the leader itself has given, with a majority. Others may come from the server that we asked, alone."""
MOST_XIDS: Final = 2147483647
"""Requests are numbered as kazoo numbers its own, which take turns with ours."""
_HEAD: Final = struct.Struct("!iii")
"""How much follows, the number, and what is asked for."""
_UNANSWERED: Final = object()
_AT_ONCE_OR_NOT: int = getattr(socket, "MSG_DONTWAIT", 0)
_REFUSED: Final = {
    KeeperState.AUTH_FAILED: problems.AuthFailedError,
    KeeperState.CLOSED: problems.ConnectionClosedError,
    KeeperState.EXPIRED_SESSION: problems.SessionExpiredError,
}


class AnswerSlot:
    """Where kazoo puts the answer to one request of a batch."""

    __slots__ = ("_at", "_batch")

    def __init__(self, batch: RequestBatch, at: int) -> None:
        self._batch = batch
        self._at = at

    def leave(self, now: float) -> None:
        """In kazoo's thread: the request is being written. What it waited for that is our own affair, not the server's."""
        if not self._at:
            self._batch.left = now

    def set(self, value: Any = None) -> None:
        self._batch.put(self._at, value)

    def set_exception(self, problem: BaseException) -> None:
        self._batch.put(self._at, problem)


class RequestBatch:
    """Requests that travel together; `done` is set when the last has its answer, a value or an exception."""

    __slots__ = ("_missing", "_mutex", "answers", "came", "done", "left", "sent", "then")

    def __init__(self, count: int, sent: float, done: Signal | None, then: Callable[[RequestBatch], None]) -> None:
        self.answers: list[Any] = [_UNANSWERED] * count
        self.sent = sent
        """When it was asked for."""
        self.left = self.came = 0.0
        """When the first request was written to the server, and when its answer was read."""
        self.done = done
        self.then = then
        self._missing = count
        self._mutex = threading.Lock()

    @property
    def decided(self) -> bool:
        """Whether the first request, a write, was answered by a majority."""
        first = self.answers[0]
        return not isinstance(first, Exception) or isinstance(first, DECIDED)

    def put(self, at: int, value: Any) -> None:
        """Take in one answer."""
        with self._mutex:
            # kazoo tells some failures twice.
            if self.answers[at] is not _UNANSWERED:
                return
            self.answers[at] = value
            if not at:
                self.came = now()
            self._missing -= 1
            if self._missing:
                return
        try:
            self.then(self)
        except Exception:
            # kazoo's connection must outlive whatever goes wrong here.
            log.exception("an answer of ZooKeeper could not be handled")
        if self.done is not None:
            self.done.set()


class ReadAhead(socket.socket):
    """A socket that reads ahead, so that the answers to requests that went out together cost one system call.

    kazoo reads the length and the body of each answer by themselves, and looks with a select before each. It skips the
    select while `pending()` says that there is something, which it knows from TLS sockets.
    """

    _ahead = b""

    def pending(self) -> int:
        """How many bytes are here already."""
        return len(self._ahead)

    def recv(self, size: int, flags: int = 0) -> bytes:
        if not self._ahead:
            self._ahead = super().recv(65536)
        data, self._ahead = self._ahead[:size], self._ahead[size:]
        return data

    def send(self, data: Any, flags: int = 0) -> int:
        try:
            return super().send(data)
        except BlockingIOError:
            full = select.poll()
            full.register(self, select.POLLOUT)
            full.poll(STUCK * 1000)
            return super().send(data)


class LeanHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, without those steps that a lock does not need.

    Watch events are handled where they are read, and no unreachable server takes up the time of a whole session.
    """

    def __init__(self, servers: int) -> None:
        super().__init__()
        self._servers = servers
        self._poll = select.poll()
        self._polled: list[int] = []

    def start(self) -> None:
        """No worker threads: what they would do is done in the connection's own."""
        self._running = True

    def stop(self) -> None:
        self._running = False

    def select(self, readers: Any, writers: Any, others: Any, timeout: float | None = None) -> Any:
        """As kazoo's, which makes and closes an epoll each time; a poll that stays is enough for two sockets."""
        if not readers and isinstance(writers[0], ReadAhead):
            # Its `send` waits by itself, in the rare case that it has to.
            return [], writers, []
        for reader in readers:
            if isinstance(reader, ReadAhead) and reader._ahead:
                return [reader], [], []
        numbers = [one.fileno() for one in (*readers, *writers)]
        if writers or numbers != self._polled:
            self._poll = select.poll()
            for one in readers:
                self._poll.register(one, select.POLLIN)
            for one in writers:
                self._poll.register(one, select.POLLOUT)
            self._polled = [] if writers else numbers
        found = self._poll.poll(None if timeout is None else max(0.0, timeout * 1000))
        ready = [number for number, _ in found]
        return [one for one in readers if one.fileno() in ready], [one for one in writers if one.fileno() in ready], []

    def create_connection(self, *args: Any, timeout: float | None = None, **options: Any) -> Any:
        """As kazoo's, but a server that does not answer is given up in time to ask the others within the session."""
        if timeout is not None:
            timeout = max(0.2, timeout / (2 * self._servers))
        made = super().create_connection(*args, timeout=timeout, **options)
        if isinstance(made, ssl.SSLSocket):
            return made
        return ReadAhead(made.family, made.type, made.proto, fileno=made.detach())

    def dispatch_callback(self, callback: Any) -> None:
        """At once, in the connection's thread: ours only set signals."""
        try:
            callback.func(*callback.args)
        except Exception:
            # kazoo's connection must outlive whatever goes wrong here.
            log.exception("a watch event could not be handled")


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
        self._expand_hosts = kind._expand_client_hosts.__get__(connection)
        self._send_request = kind._send_request.__get__(connection)
        self._listeners: tuple[Connected, ...] = ()
        self._mutex = threading.Lock()
        self._server: tuple[str, int] | None = None
        self._silent: dict[tuple[str, int], float] = {}
        self._servers: int | None = None
        self._failures = 0
        self._urgent: deque[tuple[Any, Any]] = deque()

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
                connection._expand_client_hosts = self._sorted_hosts
                connection._send_request = self._send_what_waits
            self._listeners += (listener,)

    def close(self, listener: Connected) -> None:
        """Tell this one no more."""
        connection = self._client._connection
        with self._mutex:
            listened = bool(self._listeners)
            self._listeners = tuple(other for other in self._listeners if other != listener)
            if not listened or self._listeners:
                return
            del connection._connect, connection._expand_client_hosts
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
            (self._urgent if urgent and self._listeners else self._client._queue).extend(requests)
            if self._wake_kazoo():
                return
            refused = problems.ConnectionClosedError
        for _, answer in requests:
            answer.set_exception(refused())

    def _wake_kazoo(self) -> bool:
        try:
            self._client._connection._write_sock.send(b"\0", _AT_ONCE_OR_NOT)
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
        ours = bytearray()
        for _ in range(AT_ONCE) if self._listeners else itertools.count():
            if not queue:
                break
            if isinstance(queue[0][1], AnswerSlot):
                ours += self._take_next(queue)
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

    def _take_next(self, queue: Any) -> bytes:
        """The bytes of a request of ours; from here on it may have been sent, and kazoo expects its answer."""
        request, answer = queue[0]
        body: bytes = request.serialize()
        connection = self._client._connection
        connection._xid = xid = connection._xid % MOST_XIDS + 1
        answer.leave(now())
        queue.popleft()
        self._client._pending.append((request, answer, xid))
        return _HEAD.pack(len(body) + 8, xid, request.type) + body

    def _write(self, data: bytearray, timeout: float) -> None:
        """In one piece: a system call for each request costs us and the server more than the request itself."""
        if data:
            self._client._connection._write(bytes(data), timeout)
            data.clear()

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
