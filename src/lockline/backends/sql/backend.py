"""Lines in a database: the backend's calls, each one call of a routine there."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ...core.backend import Findings
from ...core.claim import DETACHED, Claim, Gone, Grant, Line, Record, Unanswered, Waiting
from ...core.lasting import renew_for
from ...core.waiting import Hints
from ...errors import BackendUnavailable, ClientClosed
from ...guarantees import Guarantees
from ...runtime import Runtime
from ..attending import Attending
from ..doubts import Doubts
from ..failures import NoAnswer, Refused, unavailable
from . import calls, inspection
from .batches import SqlBatches
from .calls import Places, RoutineCall, Stands
from .channel import SqlChannel
from .claims import SqlClaim
from .database import Database
from .target import KEEPERS_CONNECTIONS, KEEPERS_LOGIN

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
LISTENING: Final = 2.0
"""How long it may take to begin to listen; for claims that wait twice as long each time, where logins are slow."""
LONGEST_LISTENING: Final = 8.0
"""And never longer: meanwhile the one who tries does not look."""
LISTEN_AGAIN: Final = 1.0
"""Seconds after which that is tried again, at least; where it was slow, four times as long as it took: those who wait look meanwhile."""


class SqlBackend:
    """One client of a database."""

    def __init__(self, database: Database, runtime: Runtime) -> None:
        self.url = database.url
        self.database = database
        self.at_once = database.max_connections
        self._runtime = runtime
        self.now = runtime.now
        self._link = database.link(runtime, database.max_connections)
        self._for_keeper = database.link(runtime, KEEPERS_CONNECTIONS, KEEPERS_LOGIN)
        self.channel = SqlChannel(self._link, runtime, database.system)
        # A server that is full takes no more connections, and serves those that are open: no lease is to be lost on it for that.
        self._keepers = SqlChannel(self._for_keeper, runtime, database.system, beside=self._link)
        self._places = Places(database.schema, database.prefix)
        self._pushes, self.reader = database.pushes(self, runtime)
        self._begin()

    def _begin(self) -> None:
        self._claims: dict[str, SqlClaim] = {}
        self._doubts = Doubts()
        self._attending = Attending(self._runtime)
        self._ask_at = 0.0
        self._listen_at = 0.0
        """When one that waits may try again to begin to listen."""
        self._listening = LISTENING
        self._batches = SqlBatches(self.database)

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
        promised = self.database.guarantees
        return promised if pushed == promised.push else replace(promised, push=pushed)

    @property
    def _channel_now(self) -> str | None:
        return None if self._pushes is None else self._pushes.channel

    # -- one claim ---------------------------------------------------------------------------------

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        channel = self._channel_now
        if wait:
            # Before the request: the push that brings its turn may be here before the answer.
            self._claims[claim.id] = SqlClaim("waits", claim.weight == claim.capacity)
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
        # Where we could listen and do not yet, it looks at once, and brings along the channel that it will hear.
        will_listen = channel is None and self._pushes is not None and self._pushes.possible
        return self._judge(claim, Stands(*row), channel, at_once=will_listen)

    def _judge(self, claim: Claim, stands: Stands, channel: str | None, *, at_once: bool) -> Grant | Waiting | None:
        """What a claim is told that stands like this, and was asked for on this channel; None if it does not stand there."""
        if stands.ticket is not None:
            self._note_grant(claim.id, heard=channel is not None)
            return Grant(stands.ticket)
        if stands.ahead is None:
            self._drop(claim.id)
            return None
        return self._waits(claim, stands, at_once=at_once, heard=channel is not None)

    def _note_grant(self, claim_id: str, *, heard: bool) -> None:
        if heard:
            self._claims.pop(claim_id, None)
            return
        own = self._claims.setdefault(claim_id, SqlClaim("holds"))
        own.state = "holds"
        follower = self._claims.get(own.follower)
        if follower is not None and not follower.alone:
            # The first of those who wait by now, and perhaps there is room for it as well.
            self._let_look(own.follower)

    def _waits(self, claim: Claim, stands: Stands, *, at_once: bool, heard: bool) -> Waiting:
        """It looks again when the first one ahead may have expired, and not in the same moment as its neighbours."""
        ahead, change = stands.ahead or 0, stands.change or 0.0
        apart = min(ahead * APART, FURTHEST_APART)
        before = self._claims.get(stands.behind or "")
        if before is not None:
            before.follower = claim.id
            if self._claims.get(stands.behind or "") is not before:
                before = None  # it left meanwhile, perhaps without having seen that
        # Behind one of our own that waits nobody has to ask: its turn comes first. Nor behind one that holds, if that has to go first.
        if self._channel_now is None and (
            before is None or (before.state == "holds" and claim.weight < claim.capacity)
        ):
            # As many permits are out there while their holders work: these are not in the way of each other, nor of us.
            waiting = ahead + 1 - claim.capacity // claim.weight if claim.kind == "permit" else ahead
            slowest = max(SLOWEST_POLL, len(self._claims) / ASKED_PER_SECOND)
            most = min(POLL * max(1.0, waiting / 2), slowest) * random.uniform(0.5, 1.5)
        else:
            most = NET + ahead * NET_APART
        look_by = 0.0 if at_once else self.now() + min(max(change + apart, SOONEST_LOOK), most)
        own = self._claims.get(claim.id)
        if own is not None:
            own.look_by, own.heard = look_by, heard
        return Waiting(ahead, look_by, ticket=stands.mine or 0, behind=stands.behind or "" if stands.mine else "")

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        channel = await self._listen_or_look(until)
        call = RoutineCall("place", (*self._places(claim.name), claim.id, channel))
        (row,), _ = await self.channel.run(call, until)
        answer = self._judge(claim, Stands(*row), channel, at_once=False)
        return Gone() if answer is None else answer

    async def _listen_or_look(self, until: float) -> str | None:
        """The channel, if it can be had soon; None if not: a claim that cannot be told of its turn looks for it, as where nothing is pushed."""
        began = self.now()
        if self._channel_now is None and began < self._listen_at:
            return None
        patience = self._listening
        try:
            channel = await self._listen(min(until, began + patience))
        except BackendUnavailable as away:
            if away.permanent or isinstance(away, ClientClosed):
                raise
            now = self.now()
            self._listen_at = now + max(LISTEN_AGAIN, 4 * (now - began))
            # Of many for whom it took too long at the same time, one says so.
            if self._listening == patience and now >= began + patience:
                self._listening = min(2 * patience, LONGEST_LISTENING)
            return None
        self._listening = LISTENING
        return channel

    async def _listen(self, until: float) -> str | None:
        if self._pushes is None or not self._pushes.possible:
            return None
        if self._pushes.channel is not None:
            return self._pushes.channel
        try:
            return await self._pushes.listen(until)
        except NoAnswer as problem:
            raise unavailable(self.database.system, problem) from problem

    async def leave(self, claim: Claim, until: float, *, heir: str = "") -> bool:
        # Whatever becomes of the request: nobody waits for this claim any more, and it hands nothing on.
        own = self._claims.pop(claim.id, None)
        if heir:
            # One that came before we listened may have its turn before it could look.
            next_one = self._claims.get(heir)
            self._note_grant(heir, heard=self._channel_now is not None and (next_one is None or next_one.heard))
        call = RoutineCall("leave", (*self._places(claim.name), claim.id, claim.id in self._doubts, heir or None))
        try:
            ((there,),), repeated = await self.channel.run(call, until)
        finally:
            if own is not None:
                self._let_look(own.follower)
        self._doubts.pop(claim.id, None)
        # Also if it is not there after a try that was not answered: that one may well have removed it.
        return bool(there) or repeated

    def _drop(self, claim_id: str) -> None:
        """There is no such claim any more, and whoever stood behind it cannot count on its word."""
        own = self._claims.pop(claim_id, None)
        if own is not None:
            self._let_look(own.follower)

    def _let_look(self, follower: str) -> None:
        """Where nothing is pushed: this one, if it still waits, looks for itself from now on."""
        own = self._claims.get(follower)
        if own is not None and own.state == "waits" and self._channel_now is None:
            self._hints.heard(follower)

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
        self._drop(old)
        if not nobodys:
            self._note_grant(claim.id, heard=channel is not None)
        return Grant(ticket)

    # -- many claims -------------------------------------------------------------------------------

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        if not claims:
            return []
        gone = [own for own in [self._claims.pop(claim.id, None) for claim in claims] if own]
        entries = [calls.left(self._places(claim.name), claim, claim.id in self._doubts) for claim in claims]
        there: list[bool] = []
        try:
            while entries:
                some = self._batches.first_of(entries)
                call = RoutineCall("leave_all", (calls.of_many(some),))
                try:
                    rows, repeated = await self.channel.run(call, until, insists=False)
                except Refused as refusal:
                    if self._batches.halve(refusal, some):
                        continue
                    raise
                there += [bool(was) or repeated for (was,) in rows]
                entries = entries[len(some) :]
        finally:
            for own in gone:
                self._let_look(own.follower)
        for claim in claims:
            self._doubts.pop(claim.id, None)
        return there

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        fates: list[Gone | Unanswered | None] = []
        entries = [calls.renewed(self._places(claim.name), claim) for claim in claims]
        while len(fates) < len(claims):
            channel, together = self._channel_now, self._batches.first_of(entries[len(fates) :])
            some = claims[len(fates) : len(fates) + len(together)]
            call = RoutineCall("renew", (calls.of_many(together), channel))
            try:
                rows, _ = await self._keepers.run(call, until)
            except BackendUnavailable as problem:
                if self._batches.halve(problem, together):
                    continue
                fates += [Unanswered(problem)] * len(some)
            else:
                fates += [None if lives else Gone() for (lives,) in rows]
                for claim, (lives,) in zip(some, rows, strict=True):
                    own = self._claims.get(claim.id)
                    if not lives and own is not None and own.state == "holds":
                        self._drop(claim.id)
                    elif (
                        lives and own is None and channel is None and self._pushes is not None and self._pushes.possible
                    ):
                        # It holds, and was heard up to now: the next visit of the keeper's has us listen anew.
                        self._note_grant(claim.id, heard=False)
                        self._claims[claim.id].attended = True
        return fates

    async def last(self, claim: Claim, ttl: float, until: float) -> bool:
        return await renew_for(self.renew, claim, ttl, until)

    # -- questions ---------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Line:
        return await inspection.look(self.channel, name, self._places(name), until)

    async def list(self, prefix: str, until: float) -> list[str]:
        rows, _ = await self.channel.run(RoutineCall("names", self._places.between(prefix)), until, insists=False)
        return sorted(self._places.name_of(name) for (name,) in rows)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        # Not twice: a second time would hit whoever came after the victims of the first.
        call = RoutineCall("evict", (*self._places(name), token), repeatable=False)
        ((victims,),), _ = await self.channel.run(call, until, insists=False)
        return int(victims)

    async def kept(self, name: str, what: str, until: float, token: int = 0, ttl: float = 0.0) -> Record:
        call = RoutineCall("kept", (self._places(name).name, what, token, ttl))
        ((now, value, under, written, expires),), _ = await self.channel.run(call, until)
        if value is None:
            return Record(float(now))
        return Record(float(now), bytes(value), under, float(written), float(expires))

    async def keep(self, name: str, what: str, value: bytes, token: int, ttl: float, until: float) -> bool:
        call = RoutineCall("keep", (self._places(name).name, what, value, token, ttl))
        ((done,),), _ = await self.channel.run(call, until)
        return bool(done)

    def guard_commit(self, claim: Claim, token: int, connection: object) -> object:
        """Let the caller's own transaction come to nothing once the claim is gone."""
        return self.database.guard(claim, token, connection)

    async def examine(self, until: float) -> Findings:
        return await self.database.examine(self, until)

    # -- pushes ------------------------------------------------------------------------------------

    def take_note(self, message: str) -> str:
        """Return the id of the claim that a notification names.

        It is a hint, and the database is asked: every role that may connect may NOTIFY any channel.
        """
        return message.partition(" ")[0]

    async def attend(self) -> None:
        if self._pushes is None or not self._pushes.possible:
            self._ask_for_holders()
            return
        self._pushes.drain()
        self._attending.look(list(self._claims.values()), self._listen_for_holders)

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
        if channel is None:
            return  # nobody can be told, as we know now: from now on it is asked for them
        for claim_id, own in list(self._claims.items()):
            if own.state == "holds" and own.attended:
                self._claims.pop(claim_id, None)
                self._hints.remind(claim_id)

    async def close(self) -> None:
        await self._attending.close()
        if self._pushes is not None:
            await self._pushes.close()
        for link in (self._link, self._for_keeper):
            link.close()
        await self.database.say_goodbye(self._runtime)
        # A loop ends what was closed in its next round; one that is closed before that leaves it open.
        await self._runtime.sleep(0)
