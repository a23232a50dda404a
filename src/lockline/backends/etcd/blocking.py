"""One connection for any number of threads: whoever waits for an answer reads for all, and hands on what is not its own."""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ...core import clock
from .address import Address, Endpoint
from .streams import Streams
from .wire import Broken, Call, Full, NotTaken, Wire

AGAIN = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
STUCK = 2.0
"""How long the server may refuse to take what we send."""


class BlockingLink:
    """A socket, the wire on it, and who reads it at the moment."""

    def __init__(self, sock: socket.socket, wire: Wire, endpoint: Endpoint) -> None:
        self._sock = sock
        self.wire = wire
        self.endpoint = endpoint
        self.opened = self.heard = self.answered = clock.now()
        self.pinged = 0.0
        self.streams: Streams
        self.lost: Callable[[], None] | None = None
        """Told by `receive` when the connection has ended: there may be no request that would notice."""
        self.freed: Callable[[], None] | None = None
        """Told when calls have ended: there is room for others."""
        self._mutex = threading.Lock()
        self._waiting: dict[threading.Event, None] = {}
        self._led = False
        self._ended = False
        self._nudged = False
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._poller.register(self._ear, select.POLLIN)

    # -- sending -----------------------------------------------------------------------------------

    def start(
        self, method: str, messages: bytes, token: str | None = None, hear: Callable[[bytes], None] | None = None,
        ends: bool = True, spared: int = 0,
    ) -> Call:  # fmt: skip
        """Begin a call; Full when that would leave fewer than `spared` for others."""
        with self._mutex, self._whole():
            call = self.wire.start(method, messages, token, hear, ends, spared)
            self._transmit()
        return call

    def more(self, call: Call, messages: bytes) -> None:
        """Another message on a call that goes on."""
        with self._mutex, self._whole():
            self.wire.more(call, messages)
            self._transmit()

    def cancel(self, call: Call) -> None:
        """Nobody waits for this any more."""
        with self._mutex, self._whole():
            self.wire.cancel(call)
            self._transmit()
        if self.freed is not None:
            self.freed()

    def ping(self) -> None:
        """Ask for a sign of life."""
        self.pinged = clock.now()
        with self._mutex, self._whole():
            self.wire.ping()
            self._transmit()

    def _transmit(self) -> None:
        data = self.wire.outgoing()
        try:
            while data:
                try:
                    data = data[self._sock.send(data) :]
                except AGAIN:
                    if not select.select([], [self._sock], [], STUCK)[1]:
                        raise TimeoutError("the server takes nothing any more") from None
        except OSError as problem:
            self._wake(self.wire.fail(f"sending failed: {problem}"))

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Whatever is done here to the wire is done to its end, or the connection is given up.

        Ctrl-C may come anywhere: with half a frame sent, or bytes lost on the way to the wire, nothing that follows would be
        understood.
        """
        try:
            yield
        except (Broken, Full, OSError):
            raise
        except BaseException:
            self._wake(self.wire.fail("interrupted"))
            raise

    # -- receiving ---------------------------------------------------------------------------------

    async def finished(self, call: Call, until: float) -> bool:
        """Wait for the end of this call; whether it came by then."""
        event = threading.Event()
        call.wake = event.set
        return self._wait(event, lambda: call.done, until)

    def receive(self, until: float) -> None:
        """Read for others until then, or until nudged."""
        self._wait(threading.Event(), lambda: self._nudged, until)
        self._nudged = False
        if self.wire.broken is not None and self.lost is not None:
            self.lost()

    def nudge(self) -> None:
        """End a `receive` that runs now, or the next one."""
        self._nudged = True
        self._ring()
        for event in list(self._waiting):
            event.set()

    def _ring(self) -> None:
        try:
            self._bell.send(b"!")
        except OSError:
            pass  # full of rings, or closed: either way it is heard

    def unread(self) -> bool:
        """Whether something has arrived that nobody has read: a silence of our own making."""
        poller = select.poll()
        try:
            poller.register(self._sock, select.POLLIN)
            return bool(poller.poll(0))
        except (OSError, ValueError):
            return False  # closed

    def glance(self) -> None:
        """Read what is there, without waiting."""
        with self._mutex:
            if self._led or self._ended:
                return
            self._led = True
        try:
            self._read(0.0)
        finally:
            self._free()
            self._hand_on()

    def _wait(self, event: threading.Event, done: Callable[[], bool], until: float) -> bool:
        try:
            while not done():
                left = until - clock.now()
                if left <= 0 or self.wire.broken is not None:
                    return done()
                with self._mutex:
                    if self._ended:
                        return done()
                    leads, self._led = not self._led, True
                    if not leads:
                        self._waiting[event] = None
                if not leads:
                    if not done():
                        event.wait(min(left, 60.0))
                    event.clear()
                    continue
                try:
                    while not done() and left > 0 and self.wire.broken is None:
                        self._read(left)
                        left = until - clock.now()
                finally:
                    self._free()
            return True
        finally:
            self._waiting.pop(event, None)
            self._hand_on()

    def _free(self) -> None:
        with self._mutex:
            self._led = False
            if self._ended:
                self._let_go()

    def _hand_on(self) -> None:
        if self._led:
            return
        for event in list(self._waiting):
            # Any will do: woken without an answer, it finds the place free and takes it.
            event.set()
            break

    def _read(self, seconds: float) -> None:
        pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()
        if not pending:
            ready = self._poller.poll(min(seconds, 60.0) * 1000)
            if not ready:
                return
            if any(fd == self._ear.fileno() for fd, _ in ready):
                try:
                    self._ear.recv(4096)
                except AGAIN:
                    pass
        with self._mutex, self._whole():
            try:
                data = self._sock.recv(1 << 18)
            except AGAIN:
                return
            except OSError as problem:
                done = self.wire.fail(f"receiving failed: {problem}")
            else:
                self.heard = clock.now()
                done = self.wire.feed(data) if data else self.wire.fail("the server closed the connection")
                if self.wire.must_send(done):
                    self._transmit()
        self._wake(done)

    def _wake(self, calls: list[Call]) -> None:
        for call in calls:
            if call.wake is not None:
                call.wake()
        if calls and self.freed is not None:
            self.freed()
        if self.wire.broken is not None:
            for event in list(self._waiting):
                event.set()

    # -- the end -----------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Let go of the socket; whoever still waits gets no answer."""
        with self._mutex:
            if self._ended:
                return
            self._ended = True
            calls = self.wire.fail(why)
            if not self._led:
                self._let_go()
            else:
                # Whoever reads now lets go: the number of a closed socket could become somebody else's under it.
                self._ring()
        self._wake(calls)

    def _let_go(self) -> None:
        for sock in (self._sock, self._bell, self._ear):
            sock.close()

    def forget(self) -> None:
        """In a forked child: let go of the socket without a word to the server."""
        for sock in (self._sock, self._bell, self._ear):
            os.close(sock.detach())


async def open_link(address: Address, endpoint: Endpoint, until: float) -> BlockingLink:
    """A fresh connection to this endpoint; NotTaken when there is nobody."""
    try:
        sock = socket.create_connection((endpoint.host, endpoint.port), max(0.001, until - clock.now()))
    except TimeoutError:
        raise Broken(f"{endpoint}: no connection in time") from None
    except OSError as problem:
        raise NotTaken(f"{endpoint}: {problem}") from None
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.tls is not None:
            sock = address.tls.wrap_socket(sock, server_hostname=endpoint.host)
        sock.setblocking(False)
        link = BlockingLink(sock, Wire(str(endpoint), address.scheme), endpoint)
        with link._mutex:
            link._transmit()
    except TimeoutError:
        sock.close()
        raise Broken(f"{endpoint}: no connection in time") from None
    except OSError as problem:
        sock.close()
        raise NotTaken(f"{endpoint}: {problem}") from None
    except BaseException:
        sock.close()
        raise
    return link
