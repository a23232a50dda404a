"""What a client knows of its own claims; their renewal and their removal, by request or because nobody renewed them."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ...core.claim import Claim, Gone, Unanswered
from ...core.worker import Worker
from ...errors import BackendUnavailable, LocklineError
from ...runtime import Runtime
from . import commands
from .channel import ConsulChannel
from .commands import ConsulKeys, Step, ToldClaim, told_claim, told_claims
from .sessions import SLACK, ServerSession, Sessions
from .sightings import Sightings
from .subscription import Bells

log = logging.getLogger("lockline")

REMOVED_TOGETHER: Final = 15
"""Claims per transaction: each takes three steps and may need a look at its line, and one more is for their session."""
A_TRY: Final = 2.0
"""How long the background tries one thing before it looks at the next."""
AGAIN: Final = 0.5
"""How long it waits after a try that failed."""
A_GLANCE: Final = 1.5
"""How often, at the least, somebody who waits looks whether those in its way still move."""
SHORTEST_GLANCE: Final = 0.05
NEVER: Final = float("inf")


class ConsulClaim:
    """One claim of this client, from before the request that puts it into its line until it is known to be gone."""

    __slots__ = (
        "ahead", "beat", "changed", "claim", "create", "expires", "gone", "key", "late", "session", "trusts",
    )  # fmt: skip

    def __init__(self, claim: Claim, key: str) -> None:
        self.claim = claim
        self.key = key
        self.late: ServerSession | None = None
        """What an `enter` hangs on that may still be on its way: no answer came, or it went out more than once."""
        self.session: ServerSession | None = None
        self.create = 0
        """Its place and its token; 0 until it is known to stand."""
        self.expires = NEVER
        """When its ttl is over if it is not renewed. The session lasts longer."""
        self.changed = self.beat = 0
        """The index at which its key was last put, as far as this client knows; and which time that was."""
        self.gone = False
        self.ahead: list[ToldClaim] | None = None
        """Who kept it from holding when that was last looked up: nobody, if it holds; None when that has to be done."""
        self.trusts = 0.0
        """Until when it believes that, if nobody says otherwise."""

    def stand(self, session: ServerSession, create: int, changed: int, expires: float) -> None:
        """It is there."""
        self.session, self.create, self.changed, self.expires = session, create, changed, expires

    @property
    def may_arrive(self) -> ServerSession | None:
        """The session of a request to enter that could still be applied."""
        return self.late if self.late is not None and not self.late.dead else None

    def as_told(self, claim: Claim) -> Claim:
        """As others shall see it: lighter and of another kind if it became so, and its ttl never less than before."""
        known = claim if claim.weight < self.claim.weight else self.claim
        return known._replace(ttl=max(claim.ttl, self.claim.ttl))

    def told(self, client: str) -> ToldClaim:
        """As its key tells it."""
        claim = self.claim
        session = "" if self.session is None else self.session.id
        return ToldClaim(
            self.key, claim.id, self.create, self.changed, session, claim.owner, claim.kind, claim.weight,
            claim.capacity, claim.ttl, claim.since, claim.meta, client,
        )  # fmt: skip


Renewed = tuple[Claim, ConsulClaim, ServerSession]
"""A claim to be renewed as it is now, what is known of it, and the session that is to carry it."""


class ConsulClaims:
    """The claims of one client, and a minder that removes those whose ttl is over and looks at those in their way."""

    def __init__(
        self,
        channel: ConsulChannel,
        keepers: ConsulChannel,
        sessions: Sessions,
        keys: ConsulKeys,
        runtime: Runtime,
        tell: Callable[[str], None],
    ) -> None:
        self._channel = channel
        self._keepers = keepers
        """For what keeps claims alive: however many wait for a connection to ask for more, it has one."""
        self._sessions = sessions
        self._keys = keys
        self._runtime = runtime
        self.tell = tell
        self._claims: dict[str, ConsulClaim] = {}
        self._minder = Worker(runtime, "lockline-consul-minder", self._mind, self.idle)
        self.bells = Bells(channel, sessions, keys, runtime, self._call, self._hear, self.idle)
        self.sightings = Sightings(channel, keys, runtime, self.bells)

    def idle(self) -> bool:
        return not self.standing()

    def get(self, claim_id: str) -> ConsulClaim | None:
        return self._claims.get(claim_id)

    def standing(self) -> list[ConsulClaim]:
        """Those of which more is known than that a request went out."""
        return [own for own in list(self._claims.values()) if own.expires != NEVER]

    def in_line(self, name: str) -> list[ToldClaim]:
        """Our own on this name that stand, in order of arrival."""
        mine = [own for own in self.standing() if own.create and own.claim.name == name]
        return sorted((own.told(self._keys.client) for own in mine), key=lambda told: told.create)

    def note(self, own: ConsulClaim) -> None:
        """A request to enter goes out for this one."""
        self._claims[own.claim.id] = own

    def keep(self, own: ConsulClaim) -> None:
        """See to its end, too."""
        self._claims[own.claim.id] = own
        self._minder.by(own.expires)

    def drop(self, claim_id: str) -> None:
        """Nothing of this claim is at the server, and nothing is on its way."""
        own = self._claims.pop(claim_id, None)
        if own is not None:
            self._tell_followers([own])

    def _tell_followers(self, gone: Sequence[ConsulClaim], heir: str = "") -> None:
        keys = {own.key for own in gone}
        for own in self.standing():
            if own.claim.id == heir:
                own.ahead = []
            elif own.ahead is not None and any(ahead.key in keys for ahead in own.ahead):
                self.tell(own.claim.id)

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

    def lose(self, own: ConsulClaim) -> None:
        """It is no more, and not by our own hand."""
        own.gone = True
        self.drop(own.claim.id)
        self.tell(own.claim.id)

    def lose_all(self, session: ServerSession) -> None:
        """The server has ended this session, and so every claim on it."""
        for own in self.standing():
            if own.session is session:
                self.lose(own)

    # -- renewal -----------------------------------------------------------------------------------

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        """Keep the sessions alive and put every claim anew, in as few transactions as that takes."""
        fates: dict[str, Gone | Unanswered | None] = {}
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

    async def _living(
        self, claim: Claim, sent: float, until: float, fates: dict[str, Gone | Unanswered | None]
    ) -> Renewed | None:
        """What is to be renewed of this claim, on a session that lasts as long as its holder may trust it."""
        own = self.get(claim.id)
        if own is None or own.session is None or own.expires <= sent:
            fates[claim.id] = Gone("expired" if own is not None and own.expires <= sent else None)
            return None
        session = own.session
        if self._sessions.seconds_for(claim.ttl) > session.seconds:
            session = await self._sessions.ready(claim.ttl, sent, until)
        elif session.good_until < sent + min(claim.ttl, session.seconds / SLACK):
            await self._sessions.renew([session], until, way=self._keepers)
        if own.gone:
            fates[claim.id] = Gone()
            return None
        return claim, own, session

    def _steps(self, claim: Claim, own: ConsulClaim, session: ServerSession) -> list[Step]:
        value = self._keys.value_of(own.as_told(claim))
        assert own.session is not None
        if session is own.session:
            return [commands.renew(own.key, own.changed, value, own.beat + 1)]
        return commands.move(own.key, own.session.id, session.id, value, own.beat + 1)

    async def _renew(
        self, renewed: list[Renewed], batch: list[list[Step]], sent: float, until: float,
        fates: dict[str, Gone | Unanswered | None],
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
            own.beat, own.session, own.claim = own.beat + 1, session, own.as_told(claim)
            own.expires = max(own.expires, sent + claim.ttl)
            fates[claim.id] = None
            if lighter:
                await self._let_in(own, before, until)
        return []

    async def _let_in(self, own: ConsulClaim, before: ToldClaim, until: float) -> None:
        after = await self.sightings.line(own.claim.name, until)
        was = [before if claim.id == own.claim.id else claim for claim in after]
        await self.bells.ring(was, after, until)

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
            carrier = next((known for known in self._sessions.all() if known.id == entry.get("Session")), None)
            own.session = carrier or own.session

    # -- removal -----------------------------------------------------------------------------------

    async def leave(self, claims: Sequence[Claim], until: float, *, insist: bool = True, heir: str = "") -> list[bool]:
        """Remove these for good and no other with them, in few transactions; whether each was still there.

        Where some got no answer it raises, and may be asked again.
        """
        taken = [self.get(claim.id) or ConsulClaim(claim, self._keys.claim(claim)) for claim in claims]
        there: dict[str, bool] = {}
        try:
            for own in taken:
                self._claims.pop(own.claim.id, None)
            for batch in _batches(taken):
                there.update(await self.remove(batch, until, insist=insist, heir=heir))
        except BaseException:
            # Their session may be kept alive for other claims, so time alone does not remove them.
            now = self._runtime.now()
            for own in taken:
                if own.claim.id not in there and (own.session is not None or own.late is not None):
                    own.expires = min(own.expires, now)
                    self.keep(own)
            raise
        now = self._runtime.now()
        return [there[own.claim.id] and (not own.create or own.expires > now) for own in taken]

    async def remove(
        self, batch: Sequence[ConsulClaim], until: float, *, insist: bool = True, heir: str = ""
    ) -> dict[str, bool]:
        """Remove these, all of them on the same `may_arrive`, and call those whose turn it is then; whether each was there."""
        session = batch[0].may_arrive
        lines = {own.claim.name: self._keys.line(own.claim.name) for own in batch}
        steps = [step for own in batch for step in commands.leave(own.key, self._keys.words(own.claim.id))]
        steps += [commands.look(line) for line in lines.values()]
        if session is not None:
            # Whatever was on its way before this comes too late.
            fence = commands.put(self._keys.session(session.id), session.id, flags=secrets.randbits(32))
            answer = await self._channel.transact([fence, *steps], until, insist=insist)
            if not answer.failed:
                session.was_put(answer.entries[0]["ModifyIndex"])
        if session is None or answer.failed:
            if session is not None:
                self._sessions.lose(session)
            answer = await self._channel.transact(steps, until, insist=insist)
        removed = {entry["Key"]: entry for entry in answer.entries}
        there = {}
        for own in batch:
            own.late = None
            own.create = own.create or removed.get(own.key, {}).get("CreateIndex", 0)
            # The first of several requests may have done it: gone by our own hand is no loss.
            there[own.claim.id] = own.key in removed or (answer.repeated and own.create > 0 and not own.gone)
        self._tell_followers(batch, heir)
        mine = {own.key for own in batch}
        rest = [entry for entry in answer.entries if entry["Key"] not in mine]
        for name, line in lines.items():
            after = told_claims(entry for entry in rest if entry["Key"].startswith(line))
            gone = [own.told(self._keys.client) for own in batch if own.claim.name == name and own.create]
            await self.bells.ring(sorted([*after, *gone], key=lambda claim: claim.create), after, until, heir)
        return there

    # -- the minder --------------------------------------------------------------------------------

    def watch(self, own: ConsulClaim) -> None:
        """Look at those in this claim's way now and then."""
        if own.ahead:
            self._minder.by(self._runtime.now() + self._glance(own.ahead))

    @staticmethod
    def _glance(ahead: Iterable[ToldClaim]) -> float:
        return max(SHORTEST_GLANCE, min([A_GLANCE, *(claim.ttl / 3 for claim in ahead)]))

    async def _mind(self) -> float:
        """Remove the claims whose ttl is over though their session lasts; look at those in the way of the others."""
        now = self._runtime.now()
        swept = [await self._expire(own) for own in self.standing() if own.expires <= now]
        plan = min((own.expires for own in self.standing()), default=NEVER) if all(swept) else now + AGAIN
        try:
            for session in {
                own.session for own in self.standing() if own.session and own.claim.ttl > own.session.seconds
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
        wanted = {claim.key: claim for _, ahead in waiting for claim in ahead if claim.client != self._keys.client}
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
        if claim.client == self._keys.client:
            own = self.get(claim.id)
            return own is None or own.claim.weight != claim.weight
        seen = found.get(claim.key)
        return seen is None or seen.weight != claim.weight or self.sightings.overdue(seen, now)

    async def _expire(self, own: ConsulClaim) -> bool:
        try:
            await self.remove([own], self._runtime.now() + A_TRY)
        except LocklineError as problem:
            # Others see that it stands still, and the session is the net below.
            log.debug("removing the claim on %r whose ttl is over failed: %s", own.claim.name, problem)
            return False
        self.lose(own)
        return True

    async def stop(self, until: float) -> None:
        """End what runs in the background."""
        await self.bells.stop(until)
        await self._minder.stop(until)


def _batches(claims: Iterable[ConsulClaim]) -> Iterable[list[ConsulClaim]]:
    """As many as fit into one transaction, those together whose requests to enter may still arrive on the same session."""
    by_session: dict[ServerSession | None, list[ConsulClaim]] = {}
    for own in claims:
        by_session.setdefault(own.may_arrive, []).append(own)
    for together in by_session.values():
        yield from (together[at : at + REMOVED_TOGETHER] for at in range(0, len(together), REMOVED_TOGETHER))
