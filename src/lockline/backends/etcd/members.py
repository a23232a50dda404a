"""Which member is asked: one connection, and a second one to another member before the first is given up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from ...errors import ClientClosed
from ...runtime import Runtime
from ...runtime.exclusive import Exclusive
from ..url import Endpoint
from . import connection_asyncio, connection_blocking
from .connection import EtcdLink
from .grpc import Broken, Foreign, NotTaken
from .target import EtcdTarget

CONNECT: Final = 1.0
"""How long a connection to one member may take before the next is tried."""
ALONE: Final = 5.0
"""The same where there is no other to try."""
PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.5
"""How long nobody tries to connect after every member was tried in vain."""
GLANCE: Final = 0.1
"""How often one who waits for a second connection looks whether the first has come to life again."""
STAY: Final = 1.0
STAY_LONGEST: Final = 16.0
"""How long a member is stayed with that was chosen because another was slow: twice as long each time, for all may be slow."""


class Unreachable(NotTaken):
    """There is no connection to send on."""

    def __init__(self, text: str, *, refused: bool = False, final: bool = False) -> None:
        self.refused = refused
        """Whether every member said no, rather than nothing."""
        self.final = final
        """Whether trying again is of no use: whoever is there is no etcd."""
        super().__init__(text)


class Members:
    """The connection of one client, and at times the next or the former one beside it; never more than two."""

    def __init__(self, target: EtcdTarget, runtime: Runtime, cut: Callable[[], None]) -> None:
        self._target = target
        self._runtime = runtime
        self._cut = cut
        """Called when another connection takes the place of one: what was watched on that is watched no more."""
        self.blocking = runtime.flavour == "blocking"
        self._open = connection_blocking.open_link if self.blocking else connection_asyncio.open_link
        # Clients spread over the members, each staying with its own as long as it answers.
        self._at = random.randrange(len(target.endpoints))
        self._closed = False
        self.link: EtcdLink | None = None
        self._spare: EtcdLink | None = None
        """The next one, until it has proved itself, or the former, until the calls on it have ended."""
        self.reset()

    def now(self) -> float:
        """The moment, on the clock that deadlines are on."""
        return self._runtime.now()

    def reset(self) -> None:
        """As new, with nothing of an earlier connection; for the start, and for a forked child."""
        links, self.link, self._spare = (self.link, self._spare), None, None
        for link in links:
            if link is not None:
                link.forget()
        self.token: str | None = None
        """What a login gave. It is good at every member and on every connection, until one says that it is not."""
        self._connecting = Exclusive(self._runtime)
        self._in_vain = 0
        """How many tries to connect in a row came to nothing."""
        self._refusals = self._foreigners = 0
        """How many of the last tries were answered with a no; by somebody who is no etcd."""
        self._retry_at = 0.0
        self._moving_until = 0.0
        """Somebody opens a second connection now; a moment, so that one who was cut short there does not block it for ever."""
        self._stay, self._stay_until = 0.0, 0.0

    @property
    def endpoint(self) -> Endpoint:
        """The member that is asked at the moment."""
        return self._target.endpoints[self._at % len(self._target.endpoints)]

    @property
    def closed(self) -> bool:
        """Whether nobody asks any more."""
        return self._closed

    # -- the one connection ------------------------------------------------------------------------

    async def _connect(self, until: float, give_up: float) -> tuple[EtcdLink, str | None]:
        """The connection there is, or another, and the token to ask with: ours may be taken away at any moment.

        After `give_up` it no longer waits for a member that says no.
        """
        if self._closed:
            raise ClientClosed()
        link, token = self.link, self.token
        ready = link is not None and link.grpc.broken is None and link.grpc.opening.done
        if link is not None and ready and (token or self._target.user is None):
            return link, token
        async with self._connecting(min(until, give_up)) as free:
            if free:
                return await self._connect_alone(until, give_up)
        if give_up < until and self._refusals < len(self._target.endpoints):
            # Nobody said no: whoever is connecting waits for a slow one.
            async with self._connecting(until) as free:
                if free:
                    return await self._connect_alone(until, give_up)
        refused = self._refusals >= len(self._target.endpoints)
        raise Unreachable(f"{self.endpoint}: another request of this client still tries to connect", refused=refused)

    async def _connect_alone(self, until: float, give_up: float) -> tuple[EtcdLink, str | None]:
        """As `_connect`, for the one who sees to it."""
        link = self.link
        if link is not None and link.grpc.broken is not None:
            self.leave(link, link.grpc.broken)
        link = self.link
        if link is None:
            wait = min(self._retry_at, until, give_up) - self.now()
            if wait > 0:
                await self._runtime.sleep(wait)
            try:
                link = await self._open_to(self.endpoint, until)
            except Broken as problem:
                raise self._note_failure(problem) from None
            if self._closed:
                link.close("this client is closed")
            self.link = link
        await self._await_first_word(link, until)
        token = self.token
        if self._target.user is not None and token is None:
            token = self.token = await self._login(link, until)
        return link, token

    async def _login(self, link: EtcdLink, until: float) -> str:
        raise NotImplementedError

    async def _await_first_word(self, link: EtcdLink, until: float) -> None:
        """Wait until the server has said what it takes. Only then it is known to be there, and to be an etcd."""
        opening = link.grpc.opening
        if opening.done and opening.failure is None:
            return
        alone = len(self._target.endpoints) == 1
        patience = link.opened + (ALONE if alone else CONNECT)
        if await link.wait_for(opening, min(until, patience)) and opening.failure is None:
            self._in_vain = self._refusals = self._foreigners = 0
            return
        problem: Broken = Broken(f"{link.endpoint}: connected, and then not a word")
        if isinstance(opening.failure, Foreign):
            problem = Foreign(f"{link.endpoint}: {opening.failure}")
        elif opening.failure is not None:
            problem = NotTaken(f"{link.endpoint}: closed the connection before its first word: {opening.failure}")
        if opening.done or self.now() >= patience:
            # Otherwise the caller's own time is over, and the next one goes on waiting for this connection.
            self.leave(link, str(problem), onwards=False)
            raise self._note_failure(problem)
        raise Unreachable(str(problem))

    async def _open_to(self, endpoint: Endpoint, until: float) -> EtcdLink:
        """A fresh connection to this member, that says when it ends; Broken if there is none by then, or soon."""
        link = await self._open(self._target, endpoint, self._runtime, min(until, self.now() + CONNECT))
        link.lost = partial(self.leave, link, "the connection has ended")
        return link

    def _note_failure(self, problem: Broken) -> Unreachable:
        """Note that this member could not be had; the next one is next."""
        everybody = len(self._target.endpoints)
        self._at += 1
        self._in_vain += 1
        self._refusals = self._refusals + 1 if isinstance(problem, (NotTaken, Foreign)) else 0
        self._foreigners = self._foreigners + 1 if isinstance(problem, Foreign) else 0
        if self._in_vain % everybody == 0:
            rounds = self._in_vain // everybody
            self._retry_at = self.now() + min(PAUSE * 1.5**rounds, LONGEST_PAUSE)
        return Unreachable(str(problem), refused=self._refusals >= everybody, final=self._foreigners >= everybody)

    # -- a second one ------------------------------------------------------------------------------

    async def _move(self, link: EtcdLink, dead: bool, until: float) -> bool:
        """Go on with another connection, if there is one to be had; whether this one is no longer the one to ask.

        The first stays as it is until the second has proved itself: a member that is slow or frozen may be the best there
        is. A dead one is closed then, another only when the calls on it have ended.
        """
        now = self.now()
        if self.link is not link:
            return self.link is not None
        if self._closed or now < self._moving_until:
            return False
        if not dead and (len(self._target.endpoints) == 1 or now < self._stay_until):
            return False
        self._moving_until = now + CONNECT * len(self._target.endpoints) + 1.0
        try:
            spare = await self._second(link, dead, until)
        finally:
            self._moving_until = 0.0
        if spare is None:
            return False
        if self.link is not link or (dead and _lives(link)):
            # Somebody was faster, or it lives after all.
            self._drop_spare("not needed")
            return self.link is not link
        if not dead:
            self._stay = min(max(STAY, 2 * self._stay), STAY_LONGEST)
            self._stay_until = self.now() + self._stay
        self._at = self._target.endpoints.index(spare.endpoint)
        self.link, self._spare = spare, link
        self._cut()
        if dead or not link.grpc.busy:
            self._drop_spare(f"{link.endpoint} gave no sign of life" if dead else "replaced")
        else:
            link.nudge()  # whoever reads there for others has to read here now
        return True

    def _is_well(self) -> None:
        """The member in use answers quickly: there is no reason to stay with it should that change."""
        self._stay = self._stay_until = 0.0

    async def _second(self, link: EtcdLink, dead: bool, until: float) -> EtcdLink | None:
        """Another connection that has said its first word; None if none could be had by then."""
        endpoints = self._target.endpoints
        at = endpoints.index(link.endpoint)
        others = [endpoint for endpoint in (*endpoints[at + 1 :], *endpoints[:at]) if endpoint != link.endpoint]
        for endpoint in [*others, link.endpoint] if dead else others:
            spare = self._spare
            if spare is None or spare.grpc.broken is not None or spare.endpoint != endpoint:
                self._drop_spare("another is tried")
                try:
                    spare = await self._open_to(endpoint, until)
                except Broken:
                    continue
                self._spare = spare
            patience = spare.opened + (ALONE if len(endpoints) == 1 else CONNECT)
            while not await spare.wait_for(spare.grpc.opening, min(until, patience, self.now() + GLANCE)):
                if self.now() >= until or (dead and _lives(link)):
                    # If still needed, the next one who misses an answer goes on waiting for it.
                    return None
                if self.now() >= patience:
                    break
            if spare.grpc.opening.done and spare.grpc.broken is None:
                return spare
            self._drop_spare("not a word in time")
        return None

    def _drop_spare(self, why: str) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.close(why)

    def _tidy(self) -> None:
        """Let go of a second connection that is no longer needed, after a call has ended."""
        spare = self._spare
        if spare is None or self.now() < self._moving_until:
            return
        if not spare.grpc.opening.done and (self.link is None or self.link.heard < spare.opened):
            return  # it may still be needed
        if not spare.grpc.busy:
            self._drop_spare("no longer needed")

    # -- reading, for threads that wait ------------------------------------------------------------

    def receive(self, seconds: float) -> list[str]:
        """Read for all, until nudged: who is told of what is heard is the business of whoever asked for it."""
        link = self.link
        if link is not None:
            link.receive(self.now() + seconds)
        else:
            # Whoever waits was told when the connection went, and is about to make another.
            time.sleep(min(seconds, 0.01))
        return []

    def nudge(self) -> None:
        """Make a `receive` in another thread return."""
        link = self.link
        if link is not None:
            link.nudge()

    # -- the end -----------------------------------------------------------------------------------

    def leave(self, link: EtcdLink, why: str, onwards: bool = True) -> None:
        """Give this connection up; the next request goes to the next member."""
        if link is not self.link:
            if link is self._spare:
                self._spare = None
            link.close(why)
            return
        self.link = None
        self._at += onwards
        link.close(why)
        self._cut()

    def close(self) -> None:
        """Let go of the connections."""
        self._closed = True
        self._drop_spare("this client is closed")
        if self.link is not None:
            self.leave(self.link, "this client is closed")


def _lives(link: EtcdLink) -> bool:
    """Whether it has answered the last question for a sign of life, or something that nobody has read yet."""
    return link.heard >= link.pinged or link.unread()
