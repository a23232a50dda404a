"""Lines in a database: the backend's calls, each one call of a routine there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from ...core.backend import Findings
from ...core.claim import DETACHED, Claim, Gone, Grant, Line, Record, Unanswered, Waiting
from ...core.rule import admitted
from ...core.waiting import Hints, Reader
from ...errors import BackendUnavailable
from ...guarantees import Guarantees
from ...runtime import Running, Runtime
from . import calls
from .calls import Call, Places, Stands
from .channel import Channel, Link
from .claims import Doubts, OwnClaim
from .errors import NoAnswer, unavailable

SOONEST_LOOK: Final = 0.02
APART: Final = 0.01
"""Seconds between the looks of neighbours in the line, so that the first can do what there is to do for all."""
FURTHEST_APART: Final = 1.0
NET: Final = 2.0
"""How often a waiter looks although it listens and heard nothing: a push can be lost with the connection that brings it."""
NET_APART: Final = 0.05
"""So much later for each one ahead: before these have had their turns there is nothing to miss."""
POLL: Final = 0.03
"""Where nothing is pushed: how often the next in the line looks; the one behind it half as often, and so on."""
SLOWEST_POLL: Final = 3.0
"""Whoever stands far behind looks when it may have come half of the way, so a long line does not keep the database busy."""
ASK_EVERY: Final = 1.0
"""Where nothing is pushed: how often it is asked whether what is held still is."""
ASKED_PER_SECOND: Final = 50
"""And for how many: each is a row that is written."""
KEEPERS_CONNECTIONS: Final = 2
"""Kept for renewals, so that they stand in no line behind the callers: one, and one more for when that hangs."""
KEEPERS_LOGIN: Final = 10.0
"""Seconds that a login of the keeper's may take in all, whatever the renewal has left that asked for it: the next one finds it done."""
LISTENING: Final = 2.0
"""How long it may take to begin to listen for claims that are held."""


class Pushes(Protocol):
    """What the database says unasked, on a channel of this client's own."""

    hints: Hints

    @property
    def channel(self) -> str | None:
        """Where we listen now, if we do."""

    @property
    def possible(self) -> bool:
        """False once it was found out that nothing can be pushed to us."""

    async def listen(self, until: float) -> str | None:
        """The channel, once the database has confirmed it; None where nothing can be pushed."""

    def drain(self) -> None:
        """Hear what has arrived, if nobody else is listening; never waits."""

    def forked(self) -> None: ...
    async def close(self) -> None: ...


class Dialect(Protocol):
    """One database system: how it is reached, and what it says of itself."""

    system: str
    """What people call it."""
    url: str
    schema: str
    prefix: str
    guarantees: Guarantees
    max_connections: int
    claims_per_call: int
    """How many are renewed at once: so many that it takes a small part of the time after which a try is given up."""

    def link(self, runtime: Runtime, most: int, login: float = 0.0) -> Link:
        """At most so many connections; a login may take so many seconds although its caller has less, while the server goes on answering."""

    def pushes(self, backend: SqlBackend, runtime: Runtime) -> tuple[Pushes | None, Reader | None]:
        """What listens, and how a waiting thread reads that itself."""

    async def examine(self, backend: SqlBackend, until: float) -> Findings: ...


class SqlBackend:
    """One client of a database."""

    def __init__(self, dialect: Dialect, runtime: Runtime) -> None:
        self.url = dialect.url
        self.dialect = dialect
        self._runtime = runtime
        self.now = runtime.now
        self._link = dialect.link(runtime, dialect.max_connections)
        self._for_keeper = dialect.link(runtime, KEEPERS_CONNECTIONS, KEEPERS_LOGIN)
        self.channel = Channel(self._link, runtime, dialect.system)
        self._keepers = Channel(self._for_keeper, runtime, dialect.system)
        self._places = Places(dialect.schema, dialect.prefix)
        self._pushes, self.reader = dialect.pushes(self, runtime)
        self._begin()

    def _begin(self) -> None:
        self._claims: dict[str, OwnClaim] = {}
        self._doubts = Doubts()
        self._listener: Running | None = None
        self._ask_at = 0.0

    def forked(self) -> None:
        for link in (self._link, self._for_keeper):
            link.forked()
        if self._pushes is not None:
            self._pushes.forked()
        self._begin()

    def report_to(self, hints: Hints) -> None:
        self._hints = hints
        if self._pushes is not None:
            self._pushes.hints = hints

    @property
    def guarantees(self) -> Guarantees:
        """What holds for this client; that nothing can be pushed to it may only be found out when it first connects."""
        pushed = self._pushes is not None and self._pushes.possible
        promised = self.dialect.guarantees
        return promised if pushed == promised.push else replace(promised, push=pushed)

    @property
    def _channel_now(self) -> str | None:
        return None if self._pushes is None else self._pushes.channel

    # -- one claim ---------------------------------------------------------------------------------

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        channel = self._channel_now
        if wait:
            # Before the request: the push that brings its turn may be here before the answer.
            self._claims[claim.id] = OwnClaim("waits")
        call = calls.enter(self._places(claim.name), claim, channel, wait)
        try:
            (row,), repeated = await self.channel.run(call, until, insists=wait)
        except BaseException as problem:
            self._claims.pop(claim.id, None)
            if not getattr(problem, "unsent", False):
                self._doubts.add(claim.id)
            raise
        if repeated:
            self._doubts.add(claim.id)
        stands = Stands(*row)
        if stands.ticket is not None:
            self._note_grant(claim.id, heard=channel is not None)
            return Grant(stands.ticket)
        if stands.ahead is None:
            self._claims.pop(claim.id, None)
            return None
        # On a channel that nobody listens to yet it looks at once, and brings along the one that it will hear.
        return self._waits(claim.id, stands, unheard=channel is None)

    def _note_grant(self, claim_id: str, *, heard: bool) -> None:
        if heard:
            self._claims.pop(claim_id, None)
        else:
            self._claims[claim_id] = OwnClaim("holds")

    def _waits(self, claim_id: str, stands: Stands, *, unheard: bool = False) -> Waiting:
        """It looks again when the first one ahead may have expired, and not in the same moment as its neighbours."""
        ahead, change = stands.ahead or 0, stands.change or 0.0
        apart = min(ahead * APART, FURTHEST_APART)
        # Behind a claim of our own nobody has to ask: that one hands its turn on.
        if self._channel_now is None and stands.behind not in self._claims:
            slowest = max(SLOWEST_POLL, len(self._claims) / ASKED_PER_SECOND)
            most = min(POLL * max(1.0, ahead / 2), slowest) * random.uniform(0.5, 1.5)
        else:
            most = NET + ahead * NET_APART
        look_by = 0.0 if unheard else self.now() + min(max(change + apart, SOONEST_LOOK), most)
        own = self._claims.get(claim_id)
        if own is not None:
            own.look_by = look_by
        return Waiting(ahead, look_by, ticket=stands.mine or 0, behind=stands.behind or "" if stands.mine else "")

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        own = self._claims.get(claim.id)
        if own is not None and own.token is not None:
            self._claims.pop(claim.id, None)
            return Grant(own.token)
        channel = await self._listen(until)
        call = Call("place", (*self._places(claim.name), claim.id, channel))
        (row,), _ = await self.channel.run(call, until)
        stands = Stands(*row)
        if stands.ticket is not None:
            self._note_grant(claim.id, heard=channel is not None)
            return Grant(stands.ticket)
        if stands.ahead is None:
            self._claims.pop(claim.id, None)
            return Gone()
        return self._waits(claim.id, stands)

    async def _listen(self, until: float) -> str | None:
        if self._pushes is None or not self._pushes.possible:
            return None
        if self._pushes.channel is not None:
            return self._pushes.channel
        try:
            return await self._pushes.listen(until)
        except NoAnswer as problem:
            raise unavailable(self.dialect.system, problem) from problem

    async def leave(self, claim: Claim, until: float, *, heir: str = "") -> bool:
        # Whatever becomes of the request: nobody waits for this claim any more.
        self._claims.pop(claim.id, None)
        if heir:
            self._note_grant(heir, heard=self._channel_now is not None)
        call = Call("leave", (*self._places(claim.name), claim.id, claim.id in self._doubts, heir or None))
        ((there,),), repeated = await self.channel.run(call, until)
        self._doubts.pop(claim.id, None)
        # Also if it is not there after a try that was not answered: that one may well have removed it.
        return bool(there) or repeated

    async def hand_over(self, old: str, claim: Claim, until: float) -> Grant | Waiting | Gone:
        nobodys = claim.id.startswith(DETACHED)
        channel = None if nobodys else self._channel_now
        call = calls.hand_over(self._places(claim.name), old, claim, channel)
        try:
            ((ticket,),), repeated = await self.channel.run(call, until)
        except BaseException as problem:
            if not getattr(problem, "unsent", False):
                self._doubts.add(claim.id)
            raise
        if repeated:
            self._doubts.add(claim.id)
        if ticket is None or ticket < 0:
            return Gone() if ticket is None else Waiting(0)
        self._claims.pop(old, None)
        if not nobodys:
            self._note_grant(claim.id, heard=channel is not None)
        return Grant(ticket)

    # -- many claims -------------------------------------------------------------------------------

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        for claim in claims:
            self._claims.pop(claim.id, None)
        if not claims:
            return []
        places = [self._places(claim.name) for claim in claims]
        call = calls.leave_all(places, claims, [claim.id in self._doubts for claim in claims])
        rows, repeated = await self.channel.run(call, until, insists=False)
        for claim in claims:
            self._doubts.pop(claim.id, None)
        return [bool(there) or repeated for (there,) in rows]

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        fates: list[Gone | Unanswered | None] = []
        most = self.dialect.claims_per_call
        for at in range(0, len(claims), most):
            some = claims[at : at + most]
            call = calls.renew([self._places(claim.name) for claim in some], some, self._channel_now)
            try:
                rows, _ = await self._keepers.run(call, until)
            except BackendUnavailable as problem:
                fates += [Unanswered(problem)] * len(some)
            else:
                fates += [None if lives else Gone() for (lives,) in rows]
                for claim, (lives,) in zip(some, rows, strict=True):
                    if not lives and claim.id in self._claims and self._claims[claim.id].state == "holds":
                        self._claims.pop(claim.id, None)
        return fates

    # -- questions ---------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Line:
        rows, _ = await self.channel.run(Call("look", (self._places(name).name,)), until, insists=False)
        line = [calls.standing(row, holds=False) for row in rows]
        holders = admitted(line)
        return Line(name, tuple(replace(one, holds=at < holders) for at, one in enumerate(line)))

    async def list(self, prefix: str, until: float) -> list[str]:
        rows, _ = await self.channel.run(Call("names", self._places.between(prefix)), until, insists=False)
        return sorted(self._places.name_of(name) for (name,) in rows)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        # Not twice: a second time would hit whoever came after the victims of the first.
        call = Call("evict", (*self._places(name), token), repeatable=False)
        ((victims,),), _ = await self.channel.run(call, until, insists=False)
        return int(victims)

    async def kept(self, name: str, what: str, until: float, token: int = 0, ttl: float = 0.0) -> Record:
        call = Call("kept", (self._places(name).name, what, token, ttl))
        ((now, value, under, written, expires),), _ = await self.channel.run(call, until)
        if value is None:
            return Record(float(now))
        return Record(float(now), bytes(value), under, float(written), float(expires))

    async def keep(self, name: str, what: str, value: bytes, token: int, ttl: float, until: float) -> bool:
        call = Call("keep", (self._places(name).name, what, value, token, ttl))
        ((done,),), _ = await self.channel.run(call, until)
        return bool(done)

    async def examine(self, until: float) -> Findings:
        return await self.dialect.examine(self, until)

    # -- pushes ------------------------------------------------------------------------------------

    def take_note(self, message: str) -> str:
        """The claim that a push speaks of; whoever read it hands it on to that."""
        claim_id, _, token = message.partition(" ")
        own = self._claims.get(claim_id) if token else None
        # What is no number was sent by a stranger: then it is a hint, as everything that is pushed.
        if own is not None and own.state == "waits" and token.isdecimal():
            own.token = int(token)
        return claim_id

    async def attend(self) -> None:
        if self._pushes is None or not self._pushes.possible:
            self._ask_for_holders()
            return
        self._pushes.drain()
        if self._listener is not None and self._listener.alive():
            return
        unheard = [own for own in list(self._claims.values()) if own.state == "holds"]
        if any(own.attended for own in unheard):
            # Beside the keeper: it has deadlines to watch and must not wait for a connection.
            try:
                self._listener = self._runtime.spawn(self._listen_for_holders, "lockline-listen")
            except RuntimeError:
                pass  # no thread to be had now
        for own in unheard:
            own.attended = True

    def _ask_for_holders(self) -> None:
        """Where nobody can be told of an eviction: have claims that are held for longer renewed now and then, which finds it."""
        now = self.now()
        if now < self._ask_at:
            return
        holders = [(claim_id, own) for claim_id, own in list(self._claims.items()) if own.state == "holds"]
        self._ask_at = now + max(ASK_EVERY, len(holders) / ASKED_PER_SECOND) * random.uniform(0.8, 1.2)
        for claim_id, own in holders:
            if own.attended:
                self._hints.remind(claim_id)
            own.attended = True

    async def _listen_for_holders(self) -> None:
        """Let claims that have held for a while be told of an eviction: their renewal brings the channel along."""
        try:
            channel = await self._listen(self.now() + LISTENING)
        except Exception:
            # Not now; a renewal finds an eviction too, only later.
            return
        for claim_id, own in list(self._claims.items()):
            if own.state == "holds" and own.attended:
                self._claims.pop(claim_id, None)
                if channel is not None:
                    self._hints.remind(claim_id)

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.join(self.now() + 1.0)
        if self._pushes is not None:
            await self._pushes.close()
        for link in (self._link, self._for_keeper):
            link.close()
        # A loop ends what was closed in its next round; one that is closed before that leaves it open.
        await self._runtime.sleep(0)
