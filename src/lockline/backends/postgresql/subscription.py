"""How the database reaches a waiting client: LISTEN on a channel of the client's own, on one direct connection.

A notification is the id of a claim, and only a hint: the client asks where that claim stands. Any role that may connect may NOTIFY any
channel, so nothing else in a notification is used. A client that may have missed one, because the connection broke or went silent, asks
for all its waiting claims on the next subscription.
"""

from __future__ import annotations

import asyncio
import secrets
import select
from collections.abc import Callable
from typing import Final

from ...core.waiting import Hints
from ...errors import BackendUnavailable, ClientClosed, LocklineError
from ...runtime import Runtime, clock
from ...runtime.exclusive import Exclusive
from ...runtime.section import Inside, Late, Section
from ...runtime.wake_pipe import WakePipe
from ..failures import NoAnswer
from .connection import Manner
from .connection_asyncio import AsyncioSession
from .connection_blocking import BlockingSession
from .target import PostgresqlLogin, PostgresqlTarget

MENDING: Final = 0.5
"""Seconds that mending it may take; meanwhile nobody hears."""
QUIET: Final = 1.0
"""Seconds of silence after which it is asked whether it still works; as long again for its answer."""


class Notified:
    """What both flavours know: where to listen, and whether that can be had."""

    hints: Hints

    def __init__(self, target: PostgresqlTarget, manner: Manner, take_note: Callable[[str], str]) -> None:
        self._servers: tuple[PostgresqlLogin, ...] = target.listen or target.servers
        self._through = manner
        """What is known of the sessions that steps go through."""
        self._direct = target.listen is not None
        self._manner = Manner(target.schema, manner.url)
        self._take_note = take_note
        """Notes what a push says, and gives back the id of the claim that it speaks of."""
        self._name = f"lockline_{secrets.token_hex(8)}"

    @property
    def possible(self) -> bool:
        """Behind a pooler nobody would hear us, and the session that LISTENs would be another's next; by a direct way we are heard."""
        pooled = self._manner.pooled if self._direct else self._through.pooled or self._manner.pooled
        return not pooled

    @property
    def _request(self) -> bytes:
        return f"LISTEN {self._name}".encode()


class ThreadPushes(Notified):
    """Read by whichever waiting thread leads, or by the keeper when nobody waits."""

    def __init__(self, target: PostgresqlTarget, manner: Manner, take_note: Callable[[str], str]) -> None:
        super().__init__(target, manner, take_note)
        self._wake = WakePipe()
        self.forked()

    def forked(self) -> None:
        self._wake.close()
        self._name = f"lockline_{secrets.token_hex(8)}"
        # One that was inherited is not closed: its end would be a word to the parent's server.
        self._session: BlockingSession | None = None
        self._broken = False
        self._closed = False
        self._reading = Section()
        self._opening = Section()
        self._heard_at = self._asked_at = 0.0

    @property
    def channel(self) -> str | None:
        return None if self._session is None else self._name

    async def listen(self, until: float) -> str | None:
        try:
            return self._opening.by(until, self._listen, until)
        except Late as problem:
            raise NoAnswer(self._servers[0].where, "no time left to connect", sent=False, late=True) from problem
        except Inside as problem:
            error = BackendUnavailable("asked by a signal handler in the middle of connecting to this very server")
            error.unsent = True
            raise error from problem

    def _listen(self, until: float) -> str | None:
        if self._closed:
            raise ClientClosed()
        if self._session is None:
            session = BlockingSession(self._servers, self._manner)
            try:
                session.open(until)
                if self._manner.pooled:
                    session.close()
                    return None
                session.query(self._request, until)
            except BaseException:
                session.close()
                raise
            self._heard_at = self._asked_at = clock.now()
            self._session = session
            if self._closed:
                self._session = None
                session.close()
                raise ClientClosed()
            # Whoever reads now does not know of it yet.
            self.nudge()
        return self._name

    def receive(self, seconds: float) -> list[str]:
        """Wait at most that long; the claims that were spoken of."""
        return self._reading(self._receive, seconds)

    def _receive(self, seconds: float) -> list[str]:
        if self._broken:
            self._mend()
        session = self._session
        wake = self._wake.fileno()
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        wait = min(seconds, QUIET if session else 0.1)
        told: list[str] = []
        if session is None:
            ready = poll.poll(max(0.0, wait) * 1000)
        else:
            fd = session.fileno()
            if fd is None:
                self._lose(session)
                return []
            # What came together with an answer lies in the library already, where no poll sees it.
            told = self._hear(session)
            if told:
                return told
            poll.register(fd, select.POLLIN)
            ready = poll.poll(max(0.0, wait) * 1000)
            if any(each == fd for each, _ in ready):
                told = self._hear(session)
            elif not self._still_works(session):
                self._lose(session)
        if any(each == wake for each, _ in ready):
            self._wake.clear()
        return told

    def _hear(self, session: BlockingSession) -> list[str]:
        try:
            found = session.heard()
        except NoAnswer:
            self._lose(session)
            return []
        if found or session.answered():
            self._heard_at = clock.now()
        return [self._take_note(message) for message in found]

    def _still_works(self, session: BlockingSession) -> bool:
        """Ask when it has been quiet; False when the last question stayed unanswered."""
        now, asked = clock.now(), self._asked_at > self._heard_at
        if now < max(self._heard_at, self._asked_at) + QUIET:
            return True
        self._asked_at = now
        return not asked and session.ping()

    def _lose(self, session: BlockingSession) -> None:
        if self._session is session:
            # In this order: cut short in between, it is lost once more.
            self._broken = True
            self._session = None
        session.close()

    def _mend(self) -> None:
        """Listen anew, and let everybody look: a push may have been missed.

        Once only: those who look listen anew themselves, and find out why that fails.
        """
        try:
            until = clock.now() + MENDING
            self._opening.by(until, self._listen, until)
        except (NoAnswer, LocklineError, Late, Inside):
            pass  # nothing else: a soft time limit of the thread that leads is the thread's own
        self.hints.heard_all()
        self._broken = False

    def drain(self) -> None:
        """Hear what has arrived, if nobody else is listening; never waits."""
        if self._session is not None:
            self._reading.attempt(self._drain)

    def _drain(self) -> None:
        session = self._session
        if session is None:
            return
        for claim_id in self._hear(session):
            self.hints.heard(claim_id)
        if self._session is not session or not self._still_works(session):
            self._lose(session)
            self.hints.heard_all()  # nobody waits who would mend it

    def nudge(self) -> None:
        """Make a running `receive` return."""
        self._wake.ring()

    async def close(self) -> None:
        # First: one that is being opened is closed by who opens it.
        self._closed = True
        self._broken = False
        self.nudge()
        # Not while somebody reads: the library's connection is no thing for two threads.
        try:
            self._reading.by(clock.now() + 1.0, self._end)
        except (Late, Inside):
            pass  # it goes with its last reader

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


class LoopPushes(Notified):
    """Brought by the loop itself."""

    def __init__(
        self, target: PostgresqlTarget, manner: Manner, take_note: Callable[[str], str], runtime: Runtime
    ) -> None:
        super().__init__(target, manner, take_note)
        self._runtime = runtime
        self._inherited: object = None
        self.forked()

    def forked(self) -> None:
        # Kept, never closed: the parent's loop is a stranger here.
        self._inherited = dict(self.__dict__)
        self._name = f"lockline_{secrets.token_hex(8)}"
        self._session: AsyncioSession | None = None
        self._unready: AsyncioSession | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._mending: asyncio.Task[None] | None = None
        self._lost = False
        """A push may have been missed that nobody has looked for yet."""
        self._closed = False
        self._alone = Exclusive(self._runtime)
        self._heard_at = self._asked_at = 0.0

    @property
    def channel(self) -> str | None:
        return None if self._session is None else self._name

    async def listen(self, until: float) -> str | None:
        async with self._alone(until) as mine:
            if not mine:
                raise NoAnswer(self._servers[0].where, "no time left to connect", sent=False, late=True)
            if self._closed:
                raise ClientClosed()
            if self._session is None:
                session = self._unready = AsyncioSession(self._servers, self._manner)
                try:
                    await session.open(until)
                    if self._manner.pooled:
                        session.close()
                        return None
                    await session.query(self._request, until)
                    if self._closed:
                        raise ClientClosed()
                except BaseException:
                    session.close()
                    raise
                finally:
                    self._unready = None
                self._begin(session)
            if self._lost:
                self._lost = False
                self.hints.heard_all()
            return self._name

    def _begin(self, session: AsyncioSession) -> None:
        loop = asyncio.get_running_loop()
        self._session = session
        self._heard_at = self._asked_at = clock.now()
        session.watch(self._hear)
        self._timer = loop.call_later(QUIET, self._look)

    def _hear(self) -> None:
        session = self._session
        if session is None:
            return
        try:
            found = session.heard()
            if found or session.answered():
                self._heard_at = clock.now()
        except NoAnswer:
            self._lose(session)
            return
        for message in found:
            self.hints.heard(self._take_note(message))

    def _look(self) -> None:
        """Ask when it has been quiet, end it when the last question stayed unanswered."""
        session, now = self._session, clock.now()
        if session is None:
            return
        left = self._heard_at + QUIET - now
        if left <= 0 and self._asked_at > self._heard_at:
            self._lose(session)
            return
        if left <= 0:
            self._asked_at, left = now, QUIET
            if not session.ping():
                self._lose(session)
                return
        self._timer = asyncio.get_running_loop().call_later(left, self._look)

    def _lose(self, session: AsyncioSession) -> None:
        self._session = None
        session.close()
        self._lost = True
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            self._mending = asyncio.get_running_loop().create_task(self._mend(), name="lockline-postgresql-listen")
            self._mending.add_done_callback(self._mended)

    async def _mend(self) -> None:
        """Listen anew, and let everybody look: a push may have been missed. Once only: those who look find out why."""
        try:
            await self.listen(clock.now() + MENDING)
        except Exception:
            pass

    def _mended(self, mending: asyncio.Task[None]) -> None:
        """Or not, or cancelled by somebody who cancels all tasks that he finds."""
        if self._lost:
            self.hints.heard_all()

    def drain(self) -> None:
        """Nothing to do: the loop reads."""

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for session in (self._session, self._unready):
            if session is not None:
                session.close()
        self._session = None
        if self._mending is not None and not self._mending.done():
            self._mending.cancel()
            await asyncio.gather(self._mending, return_exceptions=True)
