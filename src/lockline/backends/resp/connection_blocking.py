"""A blocking connection, written and read by the thread that has it; and the few to one server that threads share."""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol, TypeVar

from ...errors import ClientClosed
from ...runtime import clock
from ...runtime.limits import let_out, let_through
from ...runtime.quiet import hush
from ..pool import ConnectionPool
from .commands import INFO, PUSHED, new_reader
from .errors import NOT_LET_IN, DiedIdle, NoAnswer, failed_login, vet
from .joining import Request
from .target import Server

T = TypeVar("T")

BUFFER = 65536
SHORT = 4096
TIMEVAL = struct.Struct("ll")
IDLE = 0.05
"""Seconds after which a connection may have been closed unnoticed: then it is looked at before it is used."""
CLOSED = getattr(select, "POLLRDHUP", 0)
"""What `poll` calls a connection that the server has closed, where it has a word for it."""
MOMENT = 60e-6
"""Seconds that are spent awake: from the same machine an answer comes sooner than a sleeping core wakes up."""
TAKEN = 20e-6
"""Seconds between two looks after which somebody else must have had the core in between: it is wanted, so it is left."""
LONGEST_REST = 1024
"""Times that nothing is tried, after it was in vain again and again: the server is far away, or busy."""

_let_others: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Spin:
    """Looks for an answer for a moment before going to sleep, and learns from each time whether the next is worth it."""

    __slots__ = ("_in_vain", "_rest")

    def __init__(self) -> None:
        self._rest = 0
        self._in_vain = 1

    def look(self, attempt: Callable[[], T | None]) -> T | None:
        """What the attempt finds, if it finds it soon and nobody else wants this core."""
        if self._rest:
            self._rest -= 1
            return None
        now = perf_counter()
        until = now + MOMENT
        while now < until:
            found = attempt()
            if found:
                self._in_vain = max(1, self._in_vain // 2)
                return found
            _let_others()
            before, now = now, perf_counter()
            if now - before > TAKEN:
                break
        self._rest = self._in_vain = min(4 * self._in_vain, LONGEST_REST)
        return None


class BlockingConnection:
    """One connection of redis-py, after its login read and written directly: half the cost of its command layer.

    It is there before it is open, so that whoever counts connections counts those that are being made; `gone` once it is closed.
    After any error it is useless: an answer may still come on it.
    """

    __slots__ = (
        "__weakref__", "_connection", "_spin", "_timeout", "_used", "address", "gone", "heard_at", "is_open", "patience",
        "reader", "sock", "tls",
    )  # fmt: skip

    seat = False

    def __init__(self, server: Server) -> None:
        self.address = server.address
        self.patience = server.patience
        self.is_open = self.gone = False
        self._connection = server.connection()

    def open(self, until: float) -> BlockingConnection:
        """Connect and log in."""
        address, connection = self.address, self._connection
        left = until - clock.now()
        if left <= 0:
            raise NoAnswer(address, "no time left to connect", sent=False, late=True)
        connection.socket_connect_timeout = min(connection.socket_connect_timeout, left)
        connection.socket_timeout = min(self.patience, left)
        before = sys.exception()
        try:
            connection.connect()
        except NOT_LET_IN as problem:
            connection.disconnect()
            let_out(problem, before)
            raise failed_login(problem, address) from problem
        except BaseException:
            connection.disconnect()
            raise
        # Closed by the library's own connection when nobody has that any more.
        self.sock: socket.socket = hush(connection._sock)
        # Its methods are called on it, not kept: bound ones cost more.
        self.reader = new_reader()
        self.tls = isinstance(self.sock, ssl.SSLSocket)
        self._spin = Spin()
        self._timeout = 0.0
        self._used = self.heard_at = clock.now()
        self.is_open = True
        return self

    def set_timeout(self, seconds: float) -> None:
        """How long a read or a write may take from now on."""
        self._timeout = seconds
        if self.tls:
            self.sock.settimeout(seconds)
            return
        # The kernel's own timeout: Python's would ask `poll` before each read, one system call more.
        self.sock.settimeout(None)
        # It is up to an eighth and some ticks late, so it is told less; `read` waits for what is left.
        seconds = max(0.001, seconds * 7 / 8 - 0.01)
        whole = int(seconds)
        limit = TIMEVAL.pack(whole, max(1, int((seconds - whole) * 1e6)))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def ask(self, request: bytes, until: float) -> Any:
        """The answer to one command."""
        now = clock.now()
        timeout = until - now
        if timeout > self.patience:
            timeout = self.patience
        elif timeout <= 0:
            raise NoAnswer(self.address, "no time left to ask", sent=False, late=True)
        if now > self._used + IDLE and self.was_closed():
            raise DiedIdle(self.address, "the server closed the connection while it was idle", sent=False)
        self._used = now
        if timeout != self._timeout:
            self.set_timeout(timeout)
        sock, reader = self.sock, self.reader
        try:
            sock.sendall(request)
            # One read brings most answers whole.
            reader.feed(self._spin.look(self._peek) or sock.recv(SHORT))
            reply = reader.gets()
            if reply is not Ellipsis and type(reply) is not PUSHED:
                return reply
        except BlockingIOError:
            pass  # the last part of its time, which is over to the millisecond
        except OSError as problem:
            let_through(problem)
            raise NoAnswer(self.address, problem, sent=True) from problem
        return self.read(now + timeout)

    def ask_all(self, requests: Sequence[bytes], until: float) -> list[Any]:
        """The answers to several commands that are sent together."""
        replies = [self.ask(b"".join(requests), until)]
        while len(replies) < len(requests):
            replies.append(self.read(min(until, clock.now() + self.patience)))
        return replies

    def was_closed(self) -> bool:
        """Whether the other end has closed it: what is not sent then, was surely not received."""
        poll = select.poll()
        poll.register(self.sock, CLOSED)
        return bool(poll.poll(0))

    def _peek(self) -> bytes | None:
        """What has come, if anything has."""
        if self.tls:
            return None
        try:
            return self.sock.recv(SHORT, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def read(self, until: float) -> Any:
        """The next answer."""
        reader = self.reader
        try:
            while True:
                while (reply := reader.gets()) is Ellipsis:
                    reader.feed(self._receive(until))
                if type(reply) is not PUSHED:
                    return reply
        except OSError as problem:
            let_through(problem)
            raise NoAnswer(self.address, problem, sent=True) from problem

    def _receive(self, until: float) -> bytes:
        left = until - clock.now()
        if left <= 0:
            raise TimeoutError("no answer in time")
        if self.tls:
            # What has come may lie inside the library already, where no poll sees it.
            self.set_timeout(left)
        else:
            poll = select.poll()
            poll.register(self.sock, select.POLLIN)
            if not poll.poll(left * 1000):
                raise TimeoutError("no answer in time")
        return self._some()

    def wait_for_some(self, until: float) -> bytes | None:
        """What comes next; None if nothing came by then."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return self._some() if poll.poll(max(0.0, until - clock.now()) * 1000) else None

    def _some(self) -> bytes:
        data = self.sock.recv(BUFFER)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        while self.tls and self.sock.pending():  # type: ignore[attr-defined]
            # It lies inside the library, where no poll would see it.
            data += self.sock.recv(BUFFER)
        return data

    def send(self, request: bytes) -> None:
        """Send without waiting for the answer; OSError when the connection is gone."""
        self.sock.sendall(request)

    def hear(self, until: float | None = None) -> list[Any]:
        """What has arrived, pushed or not, waiting for it at most until then; OSError when the connection is gone."""
        reader = self.reader
        try:
            reader.feed(self._some() if until is None else self._receive(until))
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            return []
        self.heard_at = clock.now()
        heard = []
        while (reply := reader.gets()) is not Ellipsis:
            heard.append(reply)
        return heard

    def close(self) -> None:
        """Close it."""
        self.gone = True
        self._connection.disconnect()


class Way(Protocol):
    """What a thread asks through while it has it: a connection, or a seat on one that is shared."""

    is_open: bool
    gone: bool
    seat: bool

    def open(self, until: float) -> object: ...

    def ask(self, request: bytes, until: float) -> Any: ...

    def ask_all(self, requests: Sequence[bytes], until: float) -> list[Any]: ...

    def close(self) -> None: ...


class BlockingLink(ConnectionPool[Way]):
    """The way to one server, for threads: a few connections, opened when they are needed."""

    kept_after_fork = False

    def __init__(self, server: Server, vets: bool, most: int) -> None:
        super().__init__(most, lambda: BlockingConnection(server))
        self._address = server.address
        self._vets = vets

    @property
    def ready(self) -> bool:
        """Whether a connection is open and free."""
        return bool(self.free)

    def take(self, until: float) -> Way:
        """A connection of the caller's own until it is given back or dropped."""
        if self._closed:
            raise ClientClosed()
        connection = super().take(until)
        if connection is None:
            raise NoAnswer(self._address, "every connection is in use", sent=False, late=True)
        if not connection.is_open:
            try:
                self.make_ready(connection, until)
            except BaseException:
                self.drop(connection)
                raise
        return connection

    def make_ready(self, connection: Way, until: float) -> None:
        """Open it, and once look at who answers there."""
        if self._closed:
            raise ClientClosed()
        connection.open(until)
        if self._vets:
            vet(connection.ask(INFO, until), self._address)
            self._vets = False

    async def ask_all(self, requests: Sequence[bytes], until: float) -> list[Any]:
        return await self.ask(b"", until, requests)  # type: ignore[no-any-return]

    async def ask_in_order(self, request: Request, until: float) -> Any:
        return await self.ask(bytes(request), until)

    ask_along = ask_in_order

    async def ask(self, request: bytes, until: float, several: Sequence[bytes] = ()) -> Any:
        # Not through a function of both: this is on the way of every acquire and release.
        while True:
            try:
                connection = self.take(until) if self.line else self.free.pop()
            except IndexError:
                connection = self.take(until)
            try:
                reply = connection.ask_all(several, until) if several else connection.ask(request, until)
            except DiedIdle:
                self.drop(connection)
                continue
            except BaseException:
                # Its answer may still come: nobody may read that as the answer to something else.
                self.drop(connection)
                raise
            # Not a part of the `try`: once it is among the free ones it is no longer ours to drop.
            if connection.seat:
                # Whoever comes next takes the last one: a connection of its own, if there is any.
                self.free.appendleft(connection)
            else:
                self.free.append(connection)
            if self.line:
                self.call_next()
            if self._closed:
                # After `close` had looked for what is free.
                self.forget()
            return reply
