"""A blocking connection: written and read by the thread that has it."""

from __future__ import annotations

import select
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any

import hiredis
import redis

from ...runtime import clock
from .awake import Awake
from .port import PUSHED
from .problems import Address, DiedIdle, NoAnswer, failed_login
from .target import Target

BUFFER = 65536
SHORT = 4096
TIMEVAL = struct.Struct("ll")
IDLE = 0.05
"""Seconds after which a wire may have been closed unnoticed: then it is looked at before it is used."""
CLOSED = getattr(select, "POLLRDHUP", 0)
"""What `poll` calls a connection that the server has closed, where it has a word for it."""


class Wire:
    """One connection of redis-py, after its login read and written directly: half the cost of its command layer.

    It is there before it is open, so that whoever counts wires counts those that are being made; `gone` once it is closed.
    """

    __slots__ = (
        "__weakref__", "_awake", "_connection", "_feed", "_gets", "_sock", "_timeout", "_tls", "_used", "address", "gone",
        "is_open", "patience",
    )  # fmt: skip

    def __init__(self, target: Target, address: Address, sentinel: bool = False) -> None:
        self.address = address
        self.patience = target.patience
        self.is_open = self.gone = False
        self._connection = target.connection(address, sentinel=sentinel)

    def open(self, until: float) -> Wire:
        """Connect and log in."""
        address, connection = self.address, self._connection
        left = until - clock.now()
        if left <= 0:
            raise NoAnswer(address, "no time left to connect", sent=False, late=True)
        connection.socket_connect_timeout = min(connection.socket_connect_timeout, left)
        connection.socket_timeout = min(self.patience, left)
        try:
            connection.connect()
        except (redis.RedisError, OSError) as problem:
            connection.disconnect()
            raise failed_login(problem, address) from problem
        except BaseException:
            connection.disconnect()
            raise
        self._sock: socket.socket = connection._sock
        reader = hiredis.Reader(notEnoughData=Ellipsis)
        self._feed, self._gets = reader.feed, reader.gets
        self._tls = isinstance(self._sock, ssl.SSLSocket)
        self._awake = Awake()
        self._timeout = 0.0
        self._set_timeout(self.patience)
        self._used = clock.now()
        self.is_open = True
        return self

    def _set_timeout(self, seconds: float) -> None:
        self._timeout = seconds
        if self._tls:
            self._sock.settimeout(seconds)
            return
        # The kernel's own timeout: Python's would ask `poll` before each read, one system call more.
        self._sock.settimeout(None)
        # It is up to an eighth and some ticks late, so it is told less; `_in_the_end` waits for what is left.
        seconds = max(0.001, seconds * 7 / 8 - 0.01)
        whole = int(seconds)
        limit = TIMEVAL.pack(whole, max(1, int((seconds - whole) * 1e6)))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def hurry(self, until: float) -> None:
        """What is read next has to come by then."""
        self._set_timeout(min(self.patience, max(0.001, until - clock.now())))

    @property
    def sock(self) -> socket.socket:
        """The socket, to wait on."""
        return self._sock

    def ask(self, request: bytes, until: float) -> Any:
        """The answer to one command. After any error the wire is useless."""
        now = clock.now()
        timeout = until - now
        if timeout > self.patience:
            timeout = self.patience
        elif timeout <= 0:
            raise NoAnswer(self.address, "no time left to ask", sent=False, late=True)
        if now > self._used + IDLE and self._was_closed():
            raise DiedIdle(self.address, "the server closed the connection while it was idle", sent=False)
        self._used = now
        if timeout != self._timeout:
            self._set_timeout(timeout)
        sock = self._sock
        try:
            sock.sendall(request)
            # One read brings most answers whole.
            self._feed(self._awake.look(self._peek) or sock.recv(SHORT))
            reply = self._gets()
            if reply is Ellipsis or type(reply) is PUSHED:
                return self.read(skip=reply is Ellipsis)
            return reply
        except BlockingIOError:
            return self._in_the_end(now + timeout)
        except (OSError, hiredis.ProtocolError) as problem:
            raise NoAnswer(self.address, problem, sent=True) from problem

    def _was_closed(self) -> bool:
        """Whether the other end has closed it: what is not sent then, was surely not received."""
        poll = select.poll()
        poll.register(self._sock, CLOSED)
        return bool(poll.poll(0))

    def _in_the_end(self, until: float) -> Any:
        """The answer, if it comes in the last part of its time, which is over to the millisecond."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)

        def receive(size: int) -> bytes:
            left = until - clock.now()
            if left <= 0 or not poll.poll(left * 1000):
                raise TimeoutError("no answer in time")
            return self._sock.recv(size)

        try:
            return self.read(receive=receive)
        except (OSError, hiredis.ProtocolError) as problem:
            raise NoAnswer(self.address, problem, sent=True) from problem

    def _peek(self) -> bytes | None:
        """What has come, if anything has."""
        if self._tls:
            return None
        try:
            return self._sock.recv(SHORT, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def read(self, skip: bool = False, receive: Callable[[int], bytes] | None = None) -> Any:
        """The next answer; OSError when there is none."""
        gets, receive = self._gets, receive or self._sock.recv
        while True:
            reply = Ellipsis if skip else gets()
            skip = False
            while reply is Ellipsis:
                data = receive(BUFFER)
                if not data:
                    raise ConnectionResetError("the server closed the connection")
                self._feed(data)
                reply = gets()
            if type(reply) is not PUSHED:
                return reply

    def send(self, request: bytes) -> None:
        """Send without waiting for the answer."""
        self._sock.sendall(request)

    def hear(self) -> list[Any]:
        """Everything that has arrived, pushed or not; reads from the socket once."""
        data = self._sock.recv(BUFFER)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        self._feed(data)
        heard = []
        while (reply := self._gets()) is not Ellipsis:
            heard.append(reply)
        return heard

    def drop(self) -> None:
        """Close it."""
        self.gone = True
        self._connection.disconnect()
