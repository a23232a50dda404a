"""A client's own claims on Consul: their renewal, their removal, and an eye on those in their way."""

from __future__ import annotations

import logging
import random
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from heapq import merge
from operator import attrgetter, itemgetter
from typing import Final

from ...core.claim import Claim, Gone, Unanswered
from ...core.rule import blockers
from ...errors import BackendUnavailable, LocklineError
from ...runtime import Runtime
from ..keyed.claims import A_TRY, AGAIN, NEVER, Fates, KeyedClaim, KeyedClaims
from . import commands
from .channel import ConsulChannel
from .commands import ConsulKeys, Step, ToldClaim, told_claim
from .sessions import SLACK, ServerSession, Sessions
from .sightings import Sightings
from .subscription import ConsulPushes

log = logging.getLogger("lockline")

REMOVED_TOGETHER: Final = 12
"""Claims per transaction: each takes three steps, and may need a look at its line and a fence."""
A_GLANCE: Final = 1.5
"""How often, at the least, somebody who waits looks whether those in its way still move."""
NET: Final = 60.0
"""How long a waiter trusts what it saw, or up to twice as long; those in its way are looked at much more often."""
LONG_NET: Final = 3600.0
"""The same behind claims of its own client, whose end it is told: a thousand that looked again would each read the whole line."""
SHORTEST_GLANCE: Final = 0.05
A_MOVE: Final = 10.0
"""Seconds for which the move of a claim to a session of its own is repeated with the same session."""
FORGOTTEN: Final = 64
"""So many go while the answer to one look is on its way, at the most; who is missed by that is found by a glance."""
CROWDED: Final = 16
"""So many of one client in one line make a look at all of it, by each who comes, too dear."""


class ConsulClaim(KeyedClaim[ServerSession]):
    """One claim of this client on Consul; its place is its token, and with nobody ahead it holds."""

    __slots__ = ("apart", "beat", "key")

    def __init__(self, claim: Claim, key: str) -> None:
        super().__init__(claim)
        self.key = key
        self.beat = 0
        """Which time it was that its key was last put."""
        self.apart: ServerSession | None = None
        """The session of its own that it was to be moved to, which may have been done."""

    @property
    def token(self) -> int:
        """Its place is its token."""
        return self.create

    def stand(self, session: ServerSession, create: int, changed: int, expires: float) -> None:
        """It is there."""
        self.carrier, self.create, self.changed, self.expires = session, create, changed, expires

    def told(self, client: str) -> ToldClaim:
        """As its key tells it."""
        claim = self.claim
        session = "" if self.carrier is None else self.carrier.id
        return ToldClaim(
            claim.id, claim.owner, claim.kind, claim.weight, claim.capacity, claim.ttl, claim.since, claim.meta, client,
            *(self.granted or (claim.since,)),
            key=self.key, create=self.create, modified=self.changed, session=session,
        )  # fmt: skip


place = attrgetter("create")

Renewed = tuple[Claim, ConsulClaim, ServerSession]
"""A claim to be renewed as it is now, what is known of it, and the session that is to carry it."""


class ConsulClaims(KeyedClaims[ConsulClaim]):
    """The claims of one client on Consul, and a minder that removes those whose ttl is over and looks at those in their way."""

    removed_together = REMOVED_TOGETHER

    def __init__(
        self, channel: ConsulChannel, keepers: ConsulChannel, sessions: Sessions, keys: ConsulKeys, runtime: Runtime,
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        super().__init__(runtime, "lockline-consul-minder", tell)
        self._channel = channel
        self._keepers = keepers
        """For what keeps claims alive: however many wait for a connection to ask for more, it has one."""
        self._sessions = sessions
        self._keys = keys
        self._followers: dict[str, set[str]] = {}
        """Which of our own wait behind a claim of our own, by its key."""
        self._left: deque[str] = deque(maxlen=FORGOTTEN)
        """Those of our own that went last."""
        self.pushes = ConsulPushes(channel, sessions, keys, runtime, self._call, self._hear, self.idle)
        self.sightings = Sightings(channel, keys, runtime, self.pushes, self._is_mine)

    def own(self, claim: Claim) -> ConsulClaim:
        return self.get(claim.id) or ConsulClaim(claim, self._keys.claim(claim))

    def _is_mine(self, claim: ToldClaim) -> bool:
        return claim.client == self._keys.client and claim.id in self._claims

    def in_the_way(self, claim: Claim) -> list[ToldClaim]:
        """Those of our own who keep a newcomer from holding, where they are many: it need not see who else is there."""
        mine = [own for own in self.standing() if own.create and own.claim.name == claim.name]
        if len(mine) < CROWDED:
            return []
        mine.sort(key=place)
        # Mostly the last one alone is enough.
        last = blockers([mine[-1].told(self._keys.client)], claim)
        return last or blockers([own.told(self._keys.client) for own in mine], claim)

    def wait_behind(self, own: ConsulClaim, keepers: list[ToldClaim]) -> None:
        """It cannot hold before one of these goes: believed until then, for a good while."""
        mine = all(map(self._is_mine, keepers))
        own.ahead = keepers
        own.trusts = self._runtime.now() + (LONG_NET if mine else NET) * random.uniform(1, 2)
        for keeper in keepers:
            if keeper.client == self._keys.client:
                self._followers.setdefault(keeper.key, set()).add(own.claim.id)
                with suppress(ValueError):  # it is not among them
                    # It went after the line was seen, and told those of whom it knew. Said once: should the store show it for longer,
                    # a glance now and then is enough.
                    self._left.remove(keeper.key)
                    self._followers.pop(keeper.key, None)
                    self.tell(own.claim.id)

    def drop(self, claim_id: str) -> None:
        """Nothing of this claim is at the store, and nothing is on its way: those behind it look again."""
        own = self._claims.pop(claim_id, None)
        if own is not None:
            self._tell_followers([own])

    def _tell_followers(self, gone: Sequence[ConsulClaim], heir: str = "") -> None:
        self.granted(heir)
        heirs = self.get(heir)
        if heirs is not None:
            heirs.ahead = []
        for left in gone:
            # First: who is noted too late to be told finds it here.
            self._left.append(left.key)
            for claim_id in list(self._followers.pop(left.key, ())):
                own = self.get(claim_id)
                if own is not None and own.ahead and any(ahead.key == left.key for ahead in own.ahead):
                    self.tell(claim_id)

    def _call(self, claim_id: str) -> None:
        """It was seen to hold, which it does from then on: nobody can come ahead of it."""
        self.tell(claim_id)
        own = self.get(claim_id)
        if own is not None:
            own.ahead = []

    def _hear(self, claim_id: str, word: str, index: int) -> None:
        """Somebody left word for this claim, at that index."""
        own = self.get(claim_id)
        if word == "evicted" and own is not None and 0 < own.create < index:
            self.lose(own)
        else:
            self.tell(claim_id)

    # -- renewal -----------------------------------------------------------------------------------

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        """Keep the sessions alive and put every claim anew, in as few transactions as that takes."""
        fates: Fates = {}
        todo = list(claims)
        while todo:
            sent = self._runtime.now()
            living = [found for claim in todo if (found := await self._living(claim, sent, until, fates)) is not None]
            todo = []
            bundles = {own.key: self._steps(*one) for one in living for own in (one[1],)}
            by_key = {own.key: (claim, own, session) for claim, own, session in living}
            for batch in commands.batches(list(bundles.values())):
                renewed = [by_key[steps[0]["Key"]] for steps in batch]
                try:
                    todo += await self._renew(renewed, batch, sent, until, fates)
                except BackendUnavailable as problem:
                    if not any(fate is None for fate in fates.values()):
                        raise
                    # What was confirmed before counts: were all asked for anew each time, a long list might never get through.
                    fates.update((claim.id, Unanswered(problem)) for claim in claims if claim.id not in fates)
                    todo = []
                    break
        return [fates[claim.id] for claim in claims]

    async def set_apart(self, claim: Claim, own: ConsulClaim, sent: float, fates: Fates, until: float) -> bool:
        # One session, however often the move has to be repeated: it outlasts the claim by the time for that.
        alone = own.apart
        if alone is None or alone.good_until < sent + claim.ttl:
            alone = own.apart = await self._sessions.alone(claim.ttl + A_MOVE, until)
        again = await self._renew([(claim, own, alone)], [self._steps(claim, own, alone)], sent, until, fates)
        return not again

    async def _living(self, claim: Claim, sent: float, until: float, fates: Fates) -> Renewed | None:
        """What is to be renewed of this claim, on a session that lasts as long as its holder may trust it."""
        own = self.renewable(claim, sent, fates)
        if own is None or own.carrier is None:
            return None
        session = own.carrier
        if self._sessions.seconds_for(claim.ttl) > session.seconds:
            session = await self._sessions.ready(claim.ttl, sent, until)
        elif session.good_until < sent + min(claim.ttl, session.seconds / SLACK):
            await self._sessions.renew([session], until, way=self._keepers)
        if own.gone:
            fates[claim.id] = Gone()
            return None
        return claim, own, session

    def _steps(self, claim: Claim, own: ConsulClaim, session: ServerSession) -> list[Step]:
        value = self._keys.value_of(own.as_told(claim), *own.granted)
        since, before = own.changed, own.carrier
        assert before is not None
        if own.carried_by(session) is before:
            return [commands.renew(own.key, since, value, own.beat + 1)]
        return commands.move(own.key, before.id, session.id, value, own.beat + 1)

    async def _renew(
        self, renewed: list[Renewed], batch: list[list[Step]], sent: float, until: float,
        fates: Fates,
    ) -> list[Claim]:  # fmt: skip
        """Put these anew; those that have to be asked for again."""
        steps = [step for bundle in batch for step in bundle]
        answer = await self._keepers.transact(steps, until)
        if answer.failed:
            await self._refresh([own for _, own, _ in renewed], until)
            for claim, own, _ in renewed:
                if own.gone:
                    fates[claim.id] = Gone()
            return [claim for claim, own, _ in renewed if not own.gone]
        put = {entry["Key"]: entry for entry in answer.entries}
        for claim, own, session in renewed:
            lighter, before = claim.weight < own.claim.weight, own.told(self._keys.client)
            own.changed = max(own.changed, put[own.key]["ModifyIndex"])
            own.beat, own.carrier, own.claim = own.beat + 1, own.carried_by(session), own.as_told(claim)
            own.expires = max(own.expires, sent + claim.ttl)
            fates[claim.id] = None
            if lighter:
                await self._let_in(own, before, until)
        return []

    async def _let_in(self, own: ConsulClaim, before: ToldClaim, until: float) -> None:
        after = await self.sightings.line(own.claim.name, until)
        was = [before if claim.id == own.claim.id else claim for claim in after]
        await self.pushes.tell_new_holders(was, after, until)

    async def _refresh(self, claims: Sequence[ConsulClaim], until: float) -> None:
        """See how these stand: another request of ours came between, or they are no more."""
        looks = [commands.look(own.key) for own in claims]
        found = (await self._keepers.transact(looks, until, consistent=True)).entries
        entries = {entry["Key"]: entry for entry in found}
        for own in claims:
            entry = entries.get(own.key)
            told = None if entry is None else told_claim(entry)
            # One that another hand has released or overwritten holds nothing in the eyes of others: the next one may be at work.
            if entry is None or told is None or told.create != own.create or told.client != self._keys.client:
                self.lose(own)
                await self.remove([own], until)  # what is left of it: the note of an eviction
                continue
            own.changed, own.beat = entry["ModifyIndex"], max(own.beat, entry["Flags"])
            own.carrier = self._session_of(own, told.session)

    def _session_of(self, own: ConsulClaim, session: str) -> ServerSession:
        """The session that carries this claim, which a request whose answer was lost may have moved to it."""
        if own.apart is not None and own.apart.id == session:
            return own.apart
        known = self._sessions.called(session)
        return known or ServerSession(session, own.claim.ttl, self._runtime.now(), alone=True)

    # -- removal -----------------------------------------------------------------------------------

    async def leave(self, claims: Sequence[Claim], until: float, *, insist: bool = True, heir: str = "") -> list[bool]:
        """Remove these for good and no other with them, in few transactions; whether each was still there."""
        return await self.withdraw(claims, lambda batch: self.remove(batch, until, insist=insist, heir=heir))

    async def remove(
        self, batch: Sequence[ConsulClaim], until: float, *, insist: bool = True, heir: str = ""
    ) -> dict[str, bool]:
        """Remove these, all of them on the same `may_arrive`, and call those whose turn it is then; whether each was there."""
        session = batch[0].may_arrive
        heirs = self.get(heir)
        # An heir that takes all the room leaves nobody to be called: then nobody has to look who comes next.
        alone = heirs is not None and heirs.claim.weight >= heirs.claim.capacity
        lines = {} if alone else {own.claim.name: self._keys.line(own.claim.name) for own in batch}
        steps = [step for own in batch for step in commands.leave(own.key, self._keys.notes_to(own.claim.id))]
        steps += [commands.look(line) for line in lines.values()]
        if session is not None:
            # Whatever was on its way before this comes too late.
            fences = {self._keys.fence(session.id, own.claim.id) for own in batch}
            put = [commands.put(fence, session.id, flags=secrets.randbits(32)) for fence in fences]
            answer = await self._channel.transact([*put, *steps], until, insist=insist)
            session.fences.update((entry["Key"], entry["ModifyIndex"]) for entry in answer.entries[: len(fences)])
        if session is None or answer.failed:
            if session is not None:
                self._sessions.lose(session)
            answer = await self._channel.transact(steps, until, insist=insist)
        removed = {entry["Key"]: entry for entry in answer.entries}
        there = {}
        for own in batch:
            own.late = None
            own.create = own.create or removed.get(own.key, {}).get("CreateIndex", 0)
            there[own.claim.id] = own.was_there(own.key in removed, answer.repeated)
        self._tell_followers(batch, heir)
        mine = {own.key for own in batch}
        rest = [entry for entry in answer.entries if entry["Key"] not in mine]
        for name, line in lines.items():
            after = sorted((entry for entry in rest if entry["Key"].startswith(line)), key=itemgetter("CreateIndex"))
            gone = [own.told(self._keys.client) for own in batch if own.claim.name == name and own.create]
            before = merge(sorted(gone, key=place), commands.each_told(after), key=place)
            await self.pushes.tell_new_holders(before, commands.each_told(after), until, heir)
        return there

    # -- the minder --------------------------------------------------------------------------------

    def watch(self, own: ConsulClaim) -> None:
        """Look at those in this claim's way now and then."""
        if own.ahead:
            self._worker.by(self._runtime.now() + self._glance(own.ahead))

    @staticmethod
    def _glance(ahead: Iterable[ToldClaim]) -> float:
        return max(SHORTEST_GLANCE, min([A_GLANCE, *(claim.ttl / 3 for claim in ahead)]))

    async def _look_round(self) -> float:
        """Remove the claims whose ttl is over though their session lasts; look at those in the way of the others."""
        now, plan = self._runtime.now(), await self.sweep()
        try:
            for session in {
                own.carrier for own in self.standing() if own.carrier and own.claim.ttl > own.carrier.seconds
            }:
                if session.good_until < now + session.seconds / 2:
                    await self._sessions.renew([session], now + A_TRY, way=self._keepers)
                plan = min(plan, max(session.good_until - session.seconds / 2, now + AGAIN))
            return min(plan, await self._look_ahead())
        except LocklineError as problem:
            log.debug("looking at those ahead failed: %s", problem)
            return min(plan, self._runtime.now() + AGAIN)

    async def _look_ahead(self) -> float:
        """Tell those of our own in whose way something has changed, or stands still for too long; when to look again."""
        waiting = [(own, own.ahead) for own in self.standing() if own.ahead]
        wanted = {claim.key: claim for _, ahead in waiting for claim in ahead if not self._is_mine(claim)}
        found = await self.sightings.glance(list(wanted), self._runtime.now() + A_TRY)
        now, plan = self._runtime.now(), NEVER
        for own, ahead in waiting:
            if own.ahead is not ahead:
                continue
            if any(self._is_over(claim, found, now) for claim in ahead):
                self.tell(own.claim.id)
                continue
            ends = [self.sightings.ends(found[claim.key], now) for claim in ahead if claim.key in found]
            plan = min(plan, now + self._glance(ahead), *ends)
        return plan

    def _is_over(self, claim: ToldClaim, found: dict[str, ToldClaim], now: float) -> bool:
        if claim.client == self._keys.client and (own := self.get(claim.id)) is not None:
            return own.claim.weight != claim.weight
        seen = found.get(claim.key)
        return seen is None or seen.weight != claim.weight or self.sightings.overdue(seen, now)

    async def stop(self, until: float) -> None:
        """End what runs in the background."""
        await self.pushes.stop(until)
        await super().stop(until)
