"""Our requests and their answers on kazoo's connection, without a round through kazoo's loop for each.

kazoo looks round once for each answer: it draws lots for its next ping, asks which socket is ready, reads a length, reads a body, asks
whom that concerns. In a crowd, where a process has the processor for a moment only, that is most of what a grant costs a client. Here
all that has come is read by one call and told at once; what that leads to (a watch, a look) goes out before the thread sleeps again.
Whatever is not ours is left where it lies, for kazoo to read: pings, logins, its own requests, what has come in part.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from _thread import get_ident
from collections import deque
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import EXCEPTIONS, NoNodeError
from kazoo.protocol.connection import WATCH_XID
from kazoo.protocol.serialization import Exists, GetChildren, Transaction

from ...runtime.clock import now
from .answers import AnswerSlot
from .handler import ReadAhead

AT_ONCE: Final = 200
"""How many requests travel together at most."""
BYTES_AT_ONCE: Final = 100_000
"""Of a transaction; a server takes ten times as much unless it is set up otherwise (`jute.maxbuffer`)."""
STEP_BYTES: Final = 100
"""Of a step, beside its path and data."""
SOON: Final = 1 / 4
"""The share of its wait after which kazoo hears that something was sent: it counts from there when its next ping is due."""
MOST_XIDS: Final = 2147483647
"""Requests are numbered as kazoo numbers its own, which take turns with ours."""
AT_ONCE_OR_NOT: Final[int] = getattr(socket, "MSG_DONTWAIT", 0)
_REQUEST: Final = struct.Struct("!iii")
"""How much follows, the number, and what is asked for."""
_REPLY: Final = struct.Struct("!iiqi")
"""How much follows, the number, the last transaction that the server knows of, and what went wrong."""
_LENGTH: Final = 4


class Exchange:
    """One kazoo client's requests and answers, as far as they are ours. All of it runs in kazoo's thread, but for `is_at_it`."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self.urgent: deque[tuple[Any, Any]] = deque()
        """What goes out before all that waits."""
        self.has_sent = False
        """Whether kazoo is to be told that something was sent; whoever tells it takes this back."""
        self._telling = 0
        self._poll = select.poll()
        self._polled: tuple[int, int] | None = None

    def is_at_it(self) -> bool:
        """Whether this thread is telling what has come: what it asks for goes out after that, and nobody has to be woken."""
        return self._telling == get_ident()

    def run(self, line: ReadAhead, bell: socket.socket, timeout: float) -> list[Any]:
        """In the place of kazoo's wait for one of these; which of them it has to see to itself, none after a silence of so long."""
        numbers = line.fileno(), bell.fileno()
        if numbers != self._polled:
            self._poll = select.poll()
            for number in numbers:
                self._poll.register(number, select.POLLIN)
            self._polled = numbers
        queue = self._client._queue
        self.has_sent, sent = False, False
        until = time.monotonic() + timeout
        left = timeout
        while True:
            at_once = line.ahead or queue or self.urgent
            ready = [number for number, _ in self._poll.poll(0 if at_once else max(0.0, left * 1000))]
            if not ready and not at_once and not sent:
                return []
            if numbers[1] in ready:
                # First, so that whoever comes from here on is heard again.
                self.hush(bell)
            ended = numbers[0] in ready and not line.read_on()
            kazoos: list[Any] = [line] if (line.ahead and self._take_in(line)) or ended else []
            if (queue or self.urgent) and self._send(line) and not sent:
                sent, until = True, min(until, time.monotonic() + timeout * SOON)
            if queue:
                # What waits now is kazoo's own: it is sent in the order in which all was asked for.
                return [*kazoos, bell]
            left = until - time.monotonic()
            if kazoos or left <= 0:
                self.has_sent = sent
                # Who has to see to nothing is still told that there was no silence.
                return [*kazoos, bell] if sent else kazoos or [None]

    @staticmethod
    def hush(bell: socket.socket) -> None:
        """Take back every byte by which somebody woke us."""
        try:
            bell.recv(65536, AT_ONCE_OR_NOT)
        except BlockingIOError:
            pass

    # -- requests go out -----------------------------------------------------------------------------

    def put_urgent_first(self) -> None:
        """Have what is urgent sent before all that waits."""
        while self.urgent:
            self._client._queue.appendleft(self.urgent.popleft())

    def _send(self, line: ReadAhead) -> bool:
        """Send what waits up to the next request of kazoo's own; whether there was anything."""
        self.put_urgent_first()
        queue = self._client._queue
        data = bytearray()
        for _ in range(AT_ONCE):
            if not queue or not isinstance(queue[0][1], AnswerSlot):
                break
            data += self.take_next()
        if not data:
            return False
        # In one piece: a system call for each request costs us and the server more than the request itself.
        line.send_all(data)
        return True

    def take_next(self) -> bytes:
        """The bytes of the request of ours that waits first; from here on it may have been sent, and its answer is expected."""
        queue, connection = self._client._queue, self._client._connection
        request, answer = queue[0]
        body: bytes = request.serialize()
        connection._xid = xid = connection._xid % MOST_XIDS + 1
        answer.leave(now())
        queue.popleft()
        self._client._pending.append((request, answer, xid))
        return _REQUEST.pack(len(body) + 8, xid, request.type) + body

    # -- answers come in -----------------------------------------------------------------------------

    def _take_in(self, line: ReadAhead) -> bool:
        """Tell what has come for us, in the order in which it came; whether something is left that kazoo has to read."""
        data, at, here = line.ahead, 0, len(line.ahead)
        pending = self._client._pending
        self._telling = get_ident()
        try:
            while here - at >= _REPLY.size:
                size, xid, zxid, error = _REPLY.unpack_from(data, at)
                body, end = at + _REPLY.size, at + _LENGTH + size
                if end > here:
                    break
                if xid == WATCH_XID:
                    at = end
                    self._client._connection._read_watch_event(data, body)
                elif pending and xid == pending[0][2] and isinstance(pending[0][1], AnswerSlot):
                    at = end
                    if zxid > 0:
                        self._client.last_zxid = zxid
                    request, slot, _ = pending.popleft()
                    self._answer(request, slot, error, data, body)
                else:
                    break
        finally:
            self._telling = 0
            line.ahead = data[at:]
        return at < here

    def _answer(self, request: Any, slot: AnswerSlot, error: int, data: bytes, body: int) -> None:
        """As kazoo's own, for one of our requests."""
        answer: Any = None
        if error and not (error == NoNodeError.code and request.type == Exists.type):
            slot.set_exception(EXCEPTIONS[error]())
            return
        if not error:
            try:
                answer = request.deserialize(data, body)
            except Exception as problem:
                slot.set_exception(problem)
                return
            if request.type == Transaction.type:
                answer = Transaction.unchroot(self._client, answer)
        slot.set(answer)
        watcher = getattr(request, "watcher", None)
        if watcher and not self._client._stopped.is_set():
            of_children = isinstance(request, GetChildren)
            watchers = self._client._child_watchers if of_children else self._client._data_watchers
            watchers[request.path].add(watcher)
