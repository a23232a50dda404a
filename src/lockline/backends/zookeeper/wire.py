"""One kazoo client, asked without a thread in between: requests travel together, one signal tells that all are answered.

kazoo's connection thread sends and reads. Its own command layer hands each answer through a second thread; this file gives
requests straight to the connection and takes answers and watch events from it, with kazoo's session, auth and TLS.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from kazoo import exceptions as problems
from kazoo.client import KazooClient
from kazoo.protocol.serialization import Create2
from kazoo.protocol.states import KazooState, KeeperState

from ...core.runtime import Runtime, Signal
from ...errors import BackendUnavailable, ClientClosed, WouldDeadlock
from .session import Session
from .tap import Tap

log = logging.getLogger("lockline.zookeeper")

UNANSWERED: Final = object()
CUT: Final = (
    problems.ConnectionLoss,
    problems.SessionExpiredError,
    problems.ConnectionClosedError,
    problems.SessionMovedError,
    problems.OperationTimeoutError,
)
"""No answer: the request may have been applied or not."""

SHORTEST_SESSION = 1.0
LONGEST_SESSION = 30.0
"""A session is asked for that is as long as the shortest ttl, within these: shorter ones fall to a busy machine."""


class CreateContainer(Create2):  # type: ignore[misc]
    """A node that the server removes when its last child has gone. kazoo has no call for it; only the number differs."""

    type = 19


class Answer:
    """Where kazoo puts the answer to one request of a batch."""

    __slots__ = ("_at", "_batch")

    def __init__(self, batch: Batch, at: int) -> None:
        self._batch = batch
        self._at = at

    def set(self, value: Any = None) -> None:
        self._batch.put(self._at, value)

    def set_exception(self, problem: BaseException) -> None:
        self._batch.put(self._at, problem)


class Batch:
    """Requests that travel together; `done` is set when the last has its answer, a value or an exception."""

    __slots__ = ("_left", "_mutex", "answers", "done", "then")

    def __init__(self, count: int, done: Signal | None, then: Callable[[list[Any]], None] | None) -> None:
        self.answers: list[Any] = [UNANSWERED] * count
        self._left = count
        self.done = done
        self.then = then
        self._mutex = threading.Lock()

    def put(self, at: int, value: Any) -> None:
        with self._mutex:
            # kazoo tells some failures twice.
            if self.answers[at] is not UNANSWERED:
                return
            self.answers[at] = value
            self._left -= 1
            if self._left:
                return
        if self.then is not None:
            try:
                self.then(self.answers)
            except Exception:
                # kazoo's connection must outlive whatever goes wrong here.
                log.exception("an answer of ZooKeeper could not be handled")
        if self.done is not None:
            self.done.set()


class Wire:
    """A kazoo client of ours or of the user's, and the session that it has now."""

    def __init__(
        self,
        client: KazooClient,
        runtime: Runtime,
        *,
        ours: bool,
        changed: Callable[[], None],
        fixed_session: float | None,
    ) -> None:
        self.client = client
        self.ours = ours
        self.session: Session | None = None
        self._runtime = runtime
        self._changed = changed
        self._fixed = fixed_session
        self._up = runtime.signal()
        self._mutex = threading.Lock()
        self._started = False
        self._closed = False
        self._tap = Tap.of(client)
        self._tap.open(self)
        client.add_listener(self._on_state)

    # -- the session -------------------------------------------------------------------------------

    def connection_made(self, sent: float, granted: float, asked: int) -> None:
        """In kazoo's thread: the session goes on over a new connection, or a new one begins."""
        session = self.session
        if session is not None and session.id == self.client._session_id and not session.ended:
            session.connected(sent, granted, asked)
        else:
            if session is not None:
                session.end()
            self.session = Session(self.client._session_id, granted, asked, sent)
        if asked != self.client._session_timeout:
            # A shorter one was wished for while we connected.
            self._drop()
        self._up.set()

    def pinged(self, sent: float) -> None:
        """In kazoo's thread: a ping goes out."""
        if self.session is not None:
            self.session.touch(sent)

    def _on_state(self, state: str) -> None:
        if state == KazooState.CONNECTED:
            return
        self._up.clear()
        if state == KazooState.LOST and self.session is not None:
            self.session.end()
        if self.client.client_state in (KeeperState.AUTH_FAILED, KeeperState.CLOSED):
            # Nobody will connect again: whoever waits for that must look.
            self._up.set()
        self._changed()

    async def connected(self, ttl: float | None, until: float) -> Session:
        """The session, once there is a connection; made so that the ensemble ends it within `ttl` where it can."""
        while True:
            if self._closed:
                raise ClientClosed("this client is closed; connect a new one")
            if not self.ours and threading.current_thread() is self.client._connection._connection_routine:
                raise WouldDeadlock(
                    "a state listener of your KazooClient keeps kazoo from reading the answer; do this in another thread"
                )
            self._begin(ttl)
            session = self._ready()
            if session is not None and (ttl is None or not self._shorten(session, ttl)):
                return session
            state = self.client.client_state
            if state == KeeperState.AUTH_FAILED:
                self._started = False
                raise BackendUnavailable("ZooKeeper refused the credentials")
            if not self.ours and self.client._stopped.is_set():
                raise BackendUnavailable("the KazooClient that was given to Lockline has been stopped")
            if not await self._up.wait(until):
                raise BackendUnavailable(
                    f"no ZooKeeper server of {_hosts(self.client)} gave a session in time; are they up, with a majority?"
                )
            if self._ready() is None:
                # Connected and lost again at once; kazoo is at it, and whoever clears this looks again after that.
                self._up.clear()

    def may_wait_here(self) -> None:
        """WouldDeadlock in a callback of the user's client: what is waited for comes by the very thread that runs it."""
        if self.ours:
            return
        kazoos = (self.client._connection._connection_routine, *getattr(self.client.handler, "_workers", ()))
        if threading.current_thread() in kazoos:
            raise WouldDeadlock(
                "a callback of your KazooClient that waits for a lock keeps kazoo from telling it; wait in another thread"
            )

    def _ready(self) -> Session | None:
        session = self.session
        if session is None or session.ended or not self.client.connected:
            return None
        return session if session.asked == self.client._session_timeout else None

    def _begin(self, ttl: float | None) -> None:
        if not self._started:
            _uninterrupted(lambda: self._start(ttl))

    def _start(self, ttl: float | None) -> None:
        with self._mutex:
            if self._started:
                return
            self._started = True
            if self.ours:
                if self.client.client_state == KeeperState.AUTH_FAILED:
                    self.client.stop()
                self.client._session_timeout = round(self.wanted(10.0 if ttl is None else ttl) * 1000)
                self.client.start_async()
            elif self.client.client_state == KeeperState.CLOSED:
                self.client.start_async()
            elif self.client.connected:
                # What the server granted was said when the user connected, and kazoo has forgotten it: the same
                # session, connected once more, is told again.
                self._up.clear()
                self._drop()

    def wanted(self, ttl: float) -> float:
        """The session timeout to ask for."""
        return self._fixed or min(max(ttl, SHORTEST_SESSION), LONGEST_SESSION)

    def _shorten(self, session: Session, ttl: float) -> bool:
        """Ask for a shorter timeout if this ttl needs one and the server might give it; whether a new answer is due."""
        wanted = self.wanted(ttl)
        if not self.ours or round(wanted * 1000) >= session.asked or session.timeout * 1000 > session.asked + 1:
            return False
        _uninterrupted(lambda: self._renegotiate(session, wanted))
        return True

    def _renegotiate(self, session: Session, wanted: float) -> None:
        with self._mutex:
            if round(wanted * 1000) >= self.client._session_timeout:
                return
            session.lower(wanted, self._runtime.now())
            self.client._session_timeout = round(wanted * 1000)
            # A session keeps its nodes over a new connection, and takes the timeout that is asked for there.
            self._up.clear()
            self._drop()

    def _drop(self) -> None:
        socket = self.client._connection._socket
        try:
            if socket is not None:
                socket.shutdown(2)
        except OSError:
            pass

    # -- requests ----------------------------------------------------------------------------------

    async def ask(
        self,
        *requests: Any,
        until: float,
        proof: bool = False,
        then: Callable[[list[Any]], None] | None = None,
    ) -> list[Any]:
        """The answers, each a value or an exception of kazoo's; BackendUnavailable when one is missing by then."""
        done = self._runtime.signal()
        batch = self.post(*requests, proof=proof, then=then, done=done)
        if not await done.wait(until):
            raise BackendUnavailable(f"no answer from ZooKeeper at {_hosts(self.client)} in time")
        return batch.answers

    def post(
        self,
        *requests: Any,
        proof: bool = False,
        then: Callable[[list[Any]], None] | None = None,
        done: Signal | None = None,
    ) -> Batch:
        """Send and do not wait. `proof` says that these are writes, which only a majority can answer."""
        sent = self._runtime.now()
        session = self.session
        if session is not None:
            session.touch(sent)
        if proof:
            follow = then

            def then(answers: list[Any]) -> None:
                # In the connection's own thread, so this is the session that was asked.
                if session is not None and session is self.session and not isinstance(answers[0], CUT):
                    session.confirm(sent)
                if follow is not None:
                    follow(answers)

        batch = Batch(len(requests), done, then)
        call = self.client._call
        for at, request in enumerate(requests):
            call(request, Answer(batch, at))
        return batch

    # -- the end -----------------------------------------------------------------------------------

    async def close(self, until: float) -> None:
        """End the session if it is ours; a user's client is left as it was."""
        self._closed = True
        self._up.set()
        self.client.remove_listener(self._on_state)
        if not self.ours:
            self._tap.close(self)
            return
        if self.client._connection._write_sock is None:
            # Never started, so nothing is open.
            return
        done = self._runtime.signal()

        def stop() -> None:
            try:
                self.client.stop()
                self.client.close()
            except Exception:
                # It would not stop in time; its threads are daemons and its session ends by itself.
                pass
            done.set()

        threading.Thread(target=stop, name="lockline-zookeeper-stop", daemon=True).start()
        await done.wait(until)

    def abandon(self) -> None:
        """In a forked child: close our copies of the sockets, and say nothing on them."""
        self._closed = True
        atexit.unregister(self.client.handler.stop)
        connection = self.client._connection
        if not self.ours:
            return
        for socket in (connection._socket, connection._read_sock, connection._write_sock):
            if socket is not None:
                socket.close()


def _uninterrupted(step: Callable[[], None]) -> None:
    """Do this in a thread of its own: Ctrl-C comes between two lines of the main thread only, and here both must be done."""
    thread = threading.Thread(target=step, name="lockline-zookeeper-step", daemon=True)
    thread.start()
    thread.join()


def _hosts(client: KazooClient) -> str:
    return ",".join(f"{host}:{port}" for host, port in client.hosts)
