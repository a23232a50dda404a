"""The way to the ensemble through one kazoo client: a session, a server that answers, one signal when all is answered.

kazoo's connection thread sends and reads. Its own command layer hands each answer through a second thread; this file gives
requests straight to the connection and takes answers and watch events from it, with kazoo's session, auth and TLS.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.protocol.serialization import CheckVersion, Transaction
from kazoo.protocol.states import KazooState, KeeperState

from ...core.backend import REFUSAL
from ...errors import BackendUnavailable, ClientClosed, WouldDeadlock
from ...runtime import Runtime, Signal
from .answers import AnswerSlot, RequestBatch
from .connection import KazooHooks, hang_up
from .session import REPORT, OwedAnswers, Session

SHORTEST_SESSION = 1.0
LONGEST_SESSION = 30.0
"""A session is asked for that is as long as the shortest ttl, within these: shorter ones fall to a busy machine."""


class KazooChannel:
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
        self.owed = OwedAnswers(client)
        """What the server in use has not answered yet."""
        self._mutex = threading.Lock()
        self._started = False
        self._closed = False
        self.alarm: Callable[[float], None] = lambda moment: None
        """Called with the moment at which `watch_over` has to be called at the latest."""
        self.owes: Callable[[], bool] = lambda: False
        """Whether something is still to be removed by this client, even after its end."""
        self._hooks = KazooHooks.of(client)
        self.budget = self._hooks.budget
        """What the session can carry."""
        self._hooks.open(self._connection_made)
        client.add_listener(self._on_state)

    # -- the session -------------------------------------------------------------------------------

    def _connection_made(self, sent: float, granted: float, asked: int) -> None:
        """In kazoo's thread: the session goes on over a new connection, or a new one begins."""
        session = self.session
        if session is not None and session.id == self.client._session_id and not session.ended:
            session.connected(sent, granted, asked)
        else:
            if session is not None:
                session.end()
            self.session = Session(self.client._session_id, granted, asked, sent)
        self.owed.connected(self._runtime.now())
        if asked != self.client._session_timeout:
            # A shorter one was wished for while we connected.
            self._drop()
        self._up.set()
        # What the session carries is confirmed over the new connection at once.
        self.alarm(self._runtime.now())

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

    async def connected(self, ttl: float | None, until: float, *, insist: bool = True, tried: bool = False) -> Session:
        """The session, once there is a connection; made so that the ensemble ends it within `ttl` where it can.

        Its BackendUnavailable says `unsent`, unless the caller has tried before. Who does not insist hears of servers that all
        refuse after a moment.
        """
        patience = until if insist else min(until, self._runtime.now() + REFUSAL)
        while True:
            if self._closed:
                raise ClientClosed()
            if not self.ours and threading.current_thread() is self.client._connection._connection_routine:
                raise WouldDeadlock(
                    "a state listener of your KazooClient keeps kazoo from reading the answer; do this in another thread"
                )
            self._begin(ttl)
            session = self._ready()
            if session is not None and (ttl is None or not self._shorten(session, ttl)):
                if ttl is None or not session.idle_for_long(self._runtime.now()):
                    return session
                if not self.ours:
                    await self._prove(session, until)
                    return session
                _do_uninterrupted(lambda session=session: self._reconnect(session))  # type: ignore[misc]
                continue
            state = self.client.client_state
            if state == KeeperState.AUTH_FAILED:
                self._started = False
                raise _refusal("ZooKeeper refused the credentials", unsent=not tried, permanent=True)
            if not self.ours and self.client._stopped.is_set():
                raise _refusal(
                    "the KazooClient that was given to Lockline has been stopped", unsent=not tried, permanent=True
                )
            if not await self._up.wait(patience):
                now = self._runtime.now()
                if now >= until or self._hooks.unreachable:
                    raise _refusal(
                        f"no ZooKeeper server of {_hosts(self.client)} gave a session in time; are they up, with a majority?",
                        unsent=not tried,
                    )
                # Somebody may be there and slow: that is for the caller's own deadline to end.
                patience = min(until, now + REFUSAL / 4)
            elif self._ready() is None:
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
        if session is None or session.ended or session.reconnecting or not self.client.connected:
            return None
        return session if session.asked == self.client._session_timeout else None

    def _begin(self, ttl: float | None) -> None:
        if not self._started:
            _do_uninterrupted(lambda: self._start(ttl))

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
        _do_uninterrupted(lambda: self._renegotiate(session, wanted))
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

    def _reconnect(self, session: Session) -> None:
        """Connect anew: the request that makes a connection is the one that the leader is certain to hear of at once."""
        with self._mutex:
            if not session.idle_for_long(self._runtime.now()) or session.reconnecting:
                return
            session.reconnecting = True
            self._up.clear()
            self._drop()

    async def _prove(self, session: Session, until: float) -> None:
        """Confirm an idle session of the user's client by writes, which takes a third of its timeout.

        Its connection is left alone, because a listener of the user's would take the end of that for a failure.
        """
        write = Transaction([CheckVersion("/", -1)])
        while session is self.session and session.idle_for_long(self._runtime.now()):
            await self.ask(write, until=until, proof=True)
            await self._runtime.sleep(min(session.timeout * REPORT / 2, max(0.0, until - self._runtime.now())))

    def _drop(self) -> None:
        hang_up(self.client._connection._socket)

    def watch_over(self, now: float) -> float:
        """Leave a server that gives no answers; when to look again."""
        session = self.session
        if session is None or session.ended or not self.client.connected:
            return float("inf")
        silent, again = self.owed.look(now, session.timeout)
        if silent:
            self._hooks.leave(self.owed.line)
        return again

    # -- requests ----------------------------------------------------------------------------------

    async def ask(self, *requests: Any, until: float, proof: bool = False, urgent: bool = False) -> list[Any]:
        """The answers, each a value or an exception of kazoo's; BackendUnavailable when one is missing by then."""
        done = self._runtime.signal()
        batch = self.post(*requests, proof=proof, urgent=urgent, done=done)
        if not await done.wait(until):
            raise self.no_answer()
        return batch.answers

    def no_answer(self) -> BackendUnavailable:
        """The error of one who has waited long enough."""
        return BackendUnavailable(f"no answer from ZooKeeper at {_hosts(self.client)} in time")

    def post(
        self,
        *requests: Any,
        proof: bool = False,
        urgent: bool = False,
        then: Callable[[list[Any]], None] | None = None,
        done: Signal | None = None,
    ) -> RequestBatch:
        """Send and do not wait. `proof` says that the first is a write, which only a majority can answer;
        `urgent`, that it keeps claims alive and goes before all others.
        """
        sent = self._runtime.now()
        session = self.session if proof else None
        if session is not None:
            session.proving(sent)

        def answered(batch: RequestBatch) -> None:
            # In the connection's own thread, so this is the session that was asked.
            now = self._runtime.now()
            self.owed.answered(batch, now)
            if session is not None and session is self.session and batch.decided:
                session.confirm(batch.left or sent, batch.came or now)
                if session.due(now) <= now:
                    self.alarm(now)
            if then is not None:
                then(batch.answers)

        batch = RequestBatch(len(requests), sent, done, answered)
        if self.owed.asked(batch):
            self.alarm(self.owed.limit(sent))
        self._hooks.send([(request, AnswerSlot(batch, at)) for at, request in enumerate(requests)], urgent=urgent)
        return batch

    # -- the end -----------------------------------------------------------------------------------

    async def close(self, until: float) -> None:
        """End the session if it is ours; a user's client is left as it was."""
        self._closed = True
        self._up.set()
        self.client.remove_listener(self._on_state)
        if not self.ours:
            self.let_go()
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

        heard = self.client.connected
        threading.Thread(target=stop, name="lockline-zookeeper-stop", daemon=True).start()
        # With no connection there is nobody to say goodbye to: the session ends by itself.
        await done.wait(until if heard else min(until, self._runtime.now() + REFUSAL / 2))

    def let_go(self) -> None:
        """Leave a user's client as it was, once this one is closed and owes nothing more."""
        if self._closed and not self.ours and not self.owes():
            self._hooks.close(self._connection_made)

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


def _refusal(text: str, *, unsent: bool, permanent: bool = False) -> BackendUnavailable:
    problem = BackendUnavailable(text)
    problem.unsent, problem.permanent = unsent, permanent
    return problem


def _do_uninterrupted(step: Callable[[], None]) -> None:
    """Do this in a thread of its own: Ctrl-C comes between two lines of the main thread only, and here both must be done."""
    thread = threading.Thread(target=step, name="lockline-zookeeper-step", daemon=True)
    thread.start()
    thread.join()


def _hosts(client: KazooClient) -> str:
    return ",".join(f"{host}:{port}" for host, port in client.hosts)
