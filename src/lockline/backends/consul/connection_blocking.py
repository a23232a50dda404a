"""Lines to an agent for the threads of a process."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable
from typing import Any, Final

import httpcore

from ...runtime import clock
from ...runtime.limits import let_through
from ...runtime.quiet import hush
from ..pool import SharedPool
from ..url import Endpoint
from .connection import ConsulReply, ConsulRequest, NoReply, Pace, TooLate, Unsent, origin, prepared, reply
from .target import ConsulTarget

AT_ONCE: Final = 1 << 16


class _Stream(httpcore.NetworkStream):
    """A socket that knows by when all has to be over, not only the next byte."""

    def __init__(self, wire: _Wire) -> None:
        self._wire = wire
        self._unsent = b""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            if self._unsent:
                # Head and body go out together: two packets are twice the work on both sides.
                unsent, self._unsent = self._unsent, b""
                self._wire.ready().sendall(unsent)
            return self._wire.ready().recv(max(max_bytes, AT_ONCE))
        except TimeoutError as late:
            let_through(late)
            raise httpcore.ReadTimeout(str(late)) from None
        except OSError as problem:
            let_through(problem)
            raise httpcore.ReadError(str(problem)) from None

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._unsent += buffer

    def close(self) -> None:
        self._wire.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        try:
            self._wire.sock = ssl_context.wrap_socket(self._wire.ready(), server_hostname=server_hostname)
        except OSError as problem:
            self.close()
            let_through(problem)
            raise httpcore.ConnectError(str(problem)) from None
        return self

    def get_extra_info(self, info: str) -> Any:
        sock = self._wire.sock
        if info == "is_readable":
            return sock is None or sock.fileno() < 0 or _has_news(sock)
        return sock if info == "socket" else None


def _has_news(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


class _Wire(httpcore.NetworkBackend):
    """The socket of one link. It knows nothing of the link: one that nobody has any more is gone at once, and its place is free."""

    def __init__(self) -> None:
        self.until = 0.0
        self.sock: socket.socket | None = None
        self.let_go = False

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:  # fmt: skip
        try:
            self.sock = hush(socket.create_connection((host, port), max(0.001, self.until - clock.now())))
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as problem:
            let_through(problem)
            raise httpcore.ConnectError(str(problem)) from None
        return _Stream(self)

    def ready(self) -> socket.socket:
        """The socket, for a step that is over by then."""
        left = self.until - clock.now()
        # One that was let go while it was made would be kept for as long as the answer may take.
        if self.let_go or left <= 0 or self.sock is None:
            raise TimeoutError("no answer in time")
        self.sock.settimeout(left)
        return self.sock

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()

    __del__ = close


class BlockingConsulLink:
    """One connection, used by one thread at a time."""

    def __init__(self, target: ConsulTarget, endpoint: Endpoint) -> None:
        self._target = target
        self.endpoint = endpoint
        self.closed = False
        self._wire = _Wire()
        self._http = httpcore.HTTPConnection(
            origin(target, endpoint), ssl_context=target.tls, network_backend=self._wire, keepalive_expiry=None
        )

    def stale(self) -> bool:
        """Whether it was closed meanwhile, by the agent or because the last answer was said to be the last."""
        return self.closed or self._http.is_closed() or self._http.has_expired()

    def exchange_now(self, request: ConsulRequest, until: float) -> ConsulReply:
        """The answer, by then; NoReply if there is none."""
        self._wire.until = until
        asked = prepared(self._target, self.endpoint, request)
        try:
            answer = self._http.handle_request(asked)
            body = answer.read()
            answer.close()
            return reply(answer.status, answer.headers, body)
        except httpcore.ConnectError as problem:
            raise Unsent(f"{self.endpoint}: {problem}") from None
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as problem:
            gone = self._wire.sock is None
            raise (Unsent if gone else NoReply)(f"{self.endpoint} gave no answer: {problem or 'too late'}") from None

    async def exchange(self, request: ConsulRequest, until: float) -> ConsulReply:
        try:
            return self.exchange_now(request, until)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of it, from any thread: a `recv` under way ends."""
        # In this order: the socket is noted first, and then it is asked whether it is still wanted.
        self.closed = self._wire.let_go = True
        sock = self._wire.sock
        if sock is not None:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended already
            sock.close()

    def forget(self) -> None:
        """In a forked child: the parent goes on with it."""
        self.closed = True
        self._wire.close()


class BlockingConsulLinks:
    """At most so many lines, handed round among the threads."""

    def __init__(self, target: ConsulTarget, most: int) -> None:
        self._target = target
        self._most = most
        self._pools: dict[Endpoint, SharedPool[BlockingConsulLink]] = {}
        self._paces: dict[Endpoint, Pace] = {}

    def _pool(self, endpoint: Endpoint) -> SharedPool[BlockingConsulLink]:
        pool = self._pools.get(endpoint)
        if pool is None:
            fresh = SharedPool(
                self._most, lambda: BlockingConsulLink(self._target, endpoint), lambda line: not line.closed
            )
            pool = self._pools.setdefault(endpoint, fresh)
        return pool

    async def exchange(self, endpoint: Endpoint, request: ConsulRequest, until: float, most: float) -> ConsulReply:
        """One exchange on whichever line is free, or will be by then; the answer itself may take so many seconds at most."""
        pool = self._pool(endpoint)
        line = pool.take(until)
        while line is not None and line.stale():
            line.close()
            line = pool.take(until)
        if line is None:
            raise Unsent("every connection of this client is in use")
        pace, began = self._paces.setdefault(endpoint, Pace()), clock.now()
        try:
            if request.only_in_time:
                pace.check(endpoint, began, until)
        except TooLate:
            pool.give_back(line)
            raise
        try:
            answer = line.exchange_now(request, min(until, began + most))
        except BaseException:
            line.close()
            del line
            pool.make_room()
            raise
        pace.note(began, clock.now())
        pool.give_back(line)
        return answer

    def apart(self, endpoint: Endpoint) -> BlockingConsulLink:
        """A line that is nobody else's."""
        return BlockingConsulLink(self._target, endpoint)

    def close(self) -> None:
        """Let go of those that nobody uses."""
        self.drop_idle()

    def drop_idle(self) -> None:
        for pool in list(self._pools.values()):
            for line in pool.take_all_free():
                line.close()

    def forget(self) -> None:
        """In a forked child."""
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            for line in pool.take_all_free():
                line.forget()
