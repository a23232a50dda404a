"""The blocking port: a few connections per server, taken and given back by the thread that asks."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
import redis

from ...core import clock
from ...errors import ClientClosed
from .awake import Awake
from .port import PUSHED, pack
from .problems import Address, NoAnswer, failed_login, vet
from .target import Target

BUFFER = 65536
SHORT = 4096
INFO = pack(("INFO", "server"))
TIMEVAL = struct.Struct("ll")


class Wire:
    """One connection of redis-py, after its login read and written directly: half the cost of its command layer."""

    __slots__ = (
        "_awake", "_connection", "_feed", "_gets", "_sock", "_timeout", "_tls", "address", "patience",
    )  # fmt: skip

    def __init__(self, target: Target, address: Address, until: float, sentinel: bool) -> None:
        self.address = address
        self.patience = target.patience
        connection = target.connection(address, sentinel=sentinel)
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
        self._connection = connection
        self._sock: socket.socket = connection._sock
        reader = hiredis.Reader(notEnoughData=Ellipsis)
        self._feed, self._gets = reader.feed, reader.gets
        self._tls = isinstance(self._sock, ssl.SSLSocket)
        self._awake = Awake()
        self._timeout = 0.0
        self._set_timeout(self.patience)

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
        self._connection.disconnect()


class Pool:
    """The wires to one server: at most so many, whatever the number of threads."""

    def __init__(self, target: Target, address: Address, most: int, sentinel: bool) -> None:
        self._target = target
        self.address = address
        self._most = most
        self._sentinel = sentinel
        self.free: list[Wire] = []
        self._made = 0
        self._vetted = sentinel
        self.waiting = 0
        self._room = threading.Condition(threading.Lock())

    def take(self, until: float) -> Wire:
        """A wire of the caller's own until it is given back or dropped."""
        try:
            return self.free.pop()
        except IndexError:
            pass
        with self._room:
            while self._made >= self._most:
                if self.free:
                    return self.free.pop()
                left = until - clock.now()
                if left <= 0:
                    raise NoAnswer(self.address, "every connection is in use", sent=False)
                self.waiting += 1
                try:
                    self._room.wait(min(left, 1.0))
                finally:
                    self.waiting -= 1
            self._made += 1
        try:
            wire = Wire(self._target, self.address, until, self._sentinel)
        except BaseException:
            self._one_less()
            raise
        try:
            if not self._vetted:
                vet(wire.ask(INFO, until), self.address)
                self._vetted = True
        except BaseException:
            self.drop(wire)
            raise
        return wire

    def give_back(self, wire: Wire) -> None:
        """The wire is idle and in order."""
        self.free.append(wire)
        if self.waiting:
            self.wake_one()

    def wake_one(self) -> None:
        """Somebody waits for a wire, and one is free."""
        with self._room:
            self._room.notify()

    def drop(self, wire: Wire) -> None:
        """The wire is of no use any more."""
        wire.drop()
        self._one_less()

    def _one_less(self) -> None:
        with self._room:
            self._made -= 1
            self._room.notify()

    def clear(self) -> None:
        """Close what is idle."""
        while True:
            try:
                wire = self.free.pop()
            except IndexError:
                return
            self.drop(wire)


class BlockingPort:
    """Requests by the calling thread itself."""

    def __init__(self, target: Target, most: int) -> None:
        self._target = target
        self._most = most
        self.forked()

    def forked(self) -> None:
        """Sockets of the parent are closed here by their garbage, without a word: redis-py knows its process."""
        self._pools: dict[Address, Pool] = {}
        self._mutex = threading.Lock()
        self._closed = False

    def _pool(self, address: Address, sentinel: bool) -> Pool:
        with self._mutex:
            if self._closed:
                raise ClientClosed("this client is closed; connect a new one")
            if address not in self._pools:
                self._pools[address] = Pool(self._target, address, self._most, sentinel)
            return self._pools[address]

    async def ask(self, address: Address, request: bytes, until: float) -> Any:
        pool = self._pools.get(address) or self._pool(address, False)
        try:
            wire = pool.free.pop()
        except IndexError:
            wire = pool.take(until)
        try:
            reply = wire.ask(request, until)
        except BaseException:
            # Its answer may still come: nobody may read that as the answer to something else.
            pool.drop(wire)
            raise
        pool.free.append(wire)
        if pool.waiting:
            pool.wake_one()
        return reply

    async def ask_all(
        self, address: Address, requests: Sequence[bytes], until: float, *, sentinel: bool = False
    ) -> list[Any]:
        pool = self._pool(address, sentinel)
        wire = pool.take(until)
        try:
            replies = [wire.ask(b"".join(requests), until)]
            while len(replies) < len(requests):
                replies.append(wire.read())
        except (OSError, hiredis.ProtocolError) as problem:
            pool.drop(wire)
            raise NoAnswer(address, problem, sent=True) from problem
        except BaseException:
            pool.drop(wire)
            raise
        pool.give_back(wire)
        return replies

    def forget(self, address: Address) -> None:
        pool = self._pools.get(address)
        if pool is not None:
            pool.clear()

    async def close(self) -> None:
        with self._mutex:
            self._closed = True
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.clear()
