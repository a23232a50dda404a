"""One connection for any number of threads: whoever waits for an answer reads for all, and hands on what is not its own."""

from __future__ import annotations

import os
import select
import socket
import ssl
import sys
from _thread import LockType, allocate_lock, get_ident
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from ...runtime import Runtime, clock
from ...runtime.blocking import ring, undisturbed
from ...runtime.limits import is_callers, let_through
from ...runtime.polling import writable
from ...runtime.section import Inside, Section
from ..url import Endpoint
from .connection import EtcdLink
from .grpc import Broken, Full, Grpc, GrpcCall, NotTaken
from .target import EtcdTarget

AGAIN = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
T = TypeVar("T")

LOOK = 0.25
"""How long one who waits leaves the reading to the first without looking whether that one is still there."""
STUCK = 2.0
"""How long the server may refuse to take what we send."""


def _taken_lock() -> LockType:
    lock = allocate_lock()
    lock.acquire()
    return lock


class BlockingEtcdLink(EtcdLink):
    """A socket, the calls on it, and who reads it at the moment."""

    def __init__(self, sock: socket.socket, grpc: Grpc, endpoint: Endpoint, runtime: Runtime) -> None:
        super().__init__(grpc, endpoint, runtime)
        self._sock = sock
        self._alone = Section()
        """Who changes the calls; what an exception struck in the middle of is noted by `_midway`."""
        self._midway = False
        self._reading = Section()
        self._waiting: OrderedDict[int, LockType] = OrderedDict()
        """The threads that wait, each with the lock it sleeps on. The first of them reads: nobody is appointed."""
        self._ended = False
        self._nudged = False
        self._waker, self._woken = socket.socketpair()
        """What gets the one who reads out of its read."""
        self._waker.setblocking(False)
        self._woken.setblocking(False)
        self._poller = self._new_poller()

    def _new_poller(self) -> select.poll:
        poller = select.poll()
        poller.register(self._sock, select.POLLIN)
        poller.register(self._woken, select.POLLIN)
        return poller

    # -- sending -----------------------------------------------------------------------------------

    def _send(self, change: Callable[..., Any], *args: Any) -> Any:
        return self._wholly(self._change, change, args)

    def _change(self, change: Callable[..., T], args: tuple[Any, ...]) -> T:
        result = change(*args)
        self._transmit()
        return result

    def _transmit(self) -> None:
        data = self.grpc.outgoing()
        try:
            while data:
                try:
                    data = data[self._sock.send(data) :]
                except AGAIN:
                    if not writable(STUCK, self._sock):
                        raise TimeoutError("the server takes nothing any more") from None
        except OSError as problem:
            self._wake(self.grpc.fail(f"sending failed: {problem}"))
            let_through(problem)

    def _wholly(self, work: Callable[..., T], *args: Any) -> T:
        """Whatever is done here to the calls is done to its end, or the connection is given up.

        Ctrl-C may come anywhere: with half a frame sent, or bytes lost on the way to them, nothing that follows would be
        understood.
        """
        try:
            result: T = self._alone(self._run_noting, work, args)
            return result
        except Inside as problem:
            raise Broken("asked by a signal handler in the middle of another request of the same thread") from problem
        except (Broken, Full):
            raise
        except BaseException:
            self._wake(self._alone(self._give_up_if_midway))
            raise

    def _run_noting(self, work: Callable[..., T], args: tuple[Any, ...]) -> T:
        done: list[GrpcCall] = self._give_up_if_midway()
        if done:
            self._wake(done)
        self._midway = True
        try:
            result = work(*args)
        except (Broken, Full):
            self._midway = False
            raise
        self._midway = False
        return result

    def _give_up_if_midway(self) -> list[GrpcCall]:
        if not self._midway:
            return []
        self._midway = False
        return self.grpc.fail("interrupted")

    # -- receiving ---------------------------------------------------------------------------------

    async def wait_for(self, call: GrpcCall, until: float) -> bool:
        """Wait for the end of this call; whether it came by then."""
        lock = _taken_lock()
        call.wake = partial(ring, lock)
        return self._wait(lock, lambda: call.done, until)

    def receive(self, until: float) -> None:
        """Read for others until then, or until nudged."""
        self._wait(_taken_lock(), lambda: self._nudged, until)
        self._nudged = False
        self._tell_if_lost()

    def _tell_if_lost(self) -> None:
        if self.grpc.broken is not None and self.lost is not None:
            self.lost()

    def nudge(self) -> None:
        """End a `receive` that runs now, or the next one."""
        self._nudged = True
        self._interrupt_read()
        self._ring_all()

    def _ring_all(self) -> None:
        for lock in list(self._waiting.values()):
            ring(lock)

    def _interrupt_read(self) -> None:
        try:
            self._waker.send(b"!")
        except OSError:
            pass  # full of calls, or closed: either way it is heard

    def _fileno(self) -> int:
        return self._sock.fileno()

    def glance(self) -> None:
        """Read what is there, without waiting."""
        if not self._ended:
            self._reading.attempt(self._read, 0.0, self._poller)
            self._tell_if_lost()
        self._let_go_if_ended()

    def _wait(self, lock: LockType, done: Callable[[], bool], until: float) -> bool:
        me = get_ident()
        try:
            while not done():
                left = until - clock.now()
                if left <= 0 or self.grpc.broken is not None or self._ended:
                    return done()
                if self._waiting.get(me) is not lock:
                    # In the place of an earlier wait of this thread, which was cut short or lies under us; that one comes back.
                    self._waiting[me] = lock
                if self._reading.entered():
                    # A signal handler on top of the thread that reads: until it returns nobody else will. The poll below is in use.
                    self._read(left, self._new_poller())
                elif self._first() == me:
                    self._reading(self._read_unless, done, left)
                elif not lock.acquire(True, min(left, LOOK)):
                    self._let_the_next_read()
                    self._take_in_what_lies_there()
            return True
        finally:
            led = self._first() == me
            if self._waiting.get(me) is lock:
                self._waiting.pop(me, None)
            # Woken without an answer, the next one finds that it is the first now.
            heir = self._waiting.get(self._first() or 0) if led else None
            if heir is not None:
                ring(heir)
            self._let_go_if_ended()

    def _first(self) -> int | None:
        return undisturbed(lambda: next(iter(self._waiting), None))

    def _let_the_next_read(self) -> None:
        """Let another one read if the first was cut short in the moment of leaving: its thread is in no wait of ours."""
        first = self._first()
        lock = None if first is None else self._waiting.get(first)
        frame = sys._current_frames().get(first or 0)
        while frame is not None and not (frame.f_code is _WAIT and frame.f_locals.get("lock") is lock):
            frame = frame.f_back
        if first is not None and frame is None and self._waiting.get(first) is lock:
            self._waiting.pop(first, None)

    def _take_in_what_lies_there(self) -> None:
        """Read for the one who reads, if that is held up: a signal handler runs on top of it, and may wait for us."""
        if not self._ended and self.unread():
            self._wake(self._wholly(self._take_in))
            # What it is about to wait for may have been among that.
            self._interrupt_read()

    def _read_unless(self, done: Callable[[], bool], seconds: float) -> None:
        # Whoever was in here before, a glance of the keeper's, may have read our answer: nothing more would come for us.
        if not done():
            self._read(seconds, self._poller)

    def _read(self, seconds: float, poller: select.poll) -> None:
        pending = isinstance(self._sock, ssl.SSLSocket) and self._sock.pending()
        if not pending:
            ready = poller.poll(min(seconds, 60.0) * 1000)
            if not ready:
                return
            if any(fd == self._woken.fileno() for fd, _ in ready):
                try:
                    self._woken.recv(4096)
                except AGAIN:
                    pass
        self._wake(self._wholly(self._take_in))

    def _take_in(self) -> list[GrpcCall]:
        try:
            data = self._sock.recv(1 << 18)
        except AGAIN:
            return []
        except OSError as problem:
            ended = self.grpc.fail(f"receiving failed: {problem}")
            if is_callers(problem):
                self._wake(ended)
                raise
            return ended
        self.heard = clock.now()
        done = self.grpc.feed(data) if data else self.grpc.fail("the server closed the connection")
        if self.grpc.must_send(done):
            self._transmit()
        return done

    def _wake(self, calls: list[GrpcCall]) -> None:
        super()._wake(calls)
        if self.grpc.broken is not None:
            self._ring_all()

    # -- the end -----------------------------------------------------------------------------------

    def close(self, why: str) -> None:
        """Let go of the socket; whoever still waits gets no answer."""
        self._ended = True
        try:
            self._wake(self._alone(self.grpc.fail, why))
        except Inside:
            pass  # by a signal handler: the request under it finds that the connection has ended
        # Whoever reads now lets go: the number of a closed socket could become somebody else's under it.
        self._interrupt_read()
        self._let_go_if_ended()

    def _let_go_if_ended(self) -> None:
        if self._ended and self._waker.fileno() >= 0:
            # Nor while somebody reads in the place of one who is held up.
            self._reading.attempt(self._alone.attempt, self._let_go)

    def _let_go(self) -> None:
        for sock in (self._sock, self._waker, self._woken):
            sock.close()

    def forget(self) -> None:
        """In a forked child: let go of the socket without a word to the server."""
        for sock in (self._sock, self._waker, self._woken):
            os.close(sock.detach())


_WAIT = BlockingEtcdLink._wait.__code__


async def open_link(target: EtcdTarget, endpoint: Endpoint, runtime: Runtime, until: float) -> BlockingEtcdLink:
    """A fresh connection to this endpoint; NotTaken when there is nobody."""
    sock: socket.socket | None = None
    try:
        sock = socket.create_connection((endpoint.host, endpoint.port), max(0.001, until - clock.now()))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.tls is not None:
            sock = target.tls.wrap_socket(sock, server_hostname=endpoint.host)
        sock.setblocking(False)
        link = BlockingEtcdLink(sock, Grpc(str(endpoint), target.scheme), endpoint, runtime)
        link._wholly(link._transmit)
    except BaseException as problem:
        if sock is not None:
            sock.close()
        let_through(problem)
        if isinstance(problem, TimeoutError):
            raise Broken(f"{endpoint}: no connection in time") from None
        if isinstance(problem, OSError):
            raise NotTaken(f"{endpoint}: {problem}") from None
        raise
    return link
