"""Consul as a backend: a claim is a key under its client's session, and its create index is place and token."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

from ...core.backend import Finding
from ...core.claim import Ceiling, Claim, Gone, Grant, Line, Waiting
from ...core.rule import blockers
from ...errors import BackendUnavailable, LocklineError
from ...runtime import Runtime
from ..keyed.backend import KeyedBackend, by_consensus
from . import commands, doctor, inspection
from .changes import LineChanges
from .channel import MOST, ConsulChannel, Transacted
from .claims import ConsulClaim, ConsulClaims
from .commands import ConsulKeys, ToldClaim, told_claims
from .keeping import LARGEST, ConsulKeeping
from .sessions import ServerSession, SessionCeiling, Sessions
from .target import ConsulTarget

GUARANTEES: Final = by_consensus(
    "A minority of the servers may fail, restart or be cut off, and messages may be lost or late; an agent may fail or "
    "leave. A new cluster takes the tokens back to its backup's age."
)
KEEPERS_CONNECTIONS: Final = 2
"""Beside those of the callers, so that renewals get their turn; the second, so that one that gets no answer does not hold up the next."""
FAREWELL: Final = 1.0
NO_SESSION: Final = "00000000-0000-0000-0000-000000000000"


class ConsulBackend(KeyedBackend[ConsulClaims]):
    """One client of a cluster."""

    guarantees = GUARANTEES
    reader = None
    largest_kept = LARGEST
    at_once = MOST

    def __init__(self, target: ConsulTarget, runtime: Runtime) -> None:
        super().__init__(target.url, runtime)
        self._target = target
        self._channel = ConsulChannel(target, runtime)
        self._keepers = ConsulChannel(target, runtime, KEEPERS_CONNECTIONS)
        self._begin()

    def _begin(self) -> None:
        self._keys = ConsulKeys(self._target.prefix, secrets.token_hex(8))
        self._sessions = Sessions(self._channel, self._runtime, lambda session: self._claims.lose_all(session))
        self._claims = ConsulClaims(
            self._channel, self._keepers, self._sessions, self._keys, self._runtime, self._heard
        )
        self._keeping = ConsulKeeping(self._channel, self._keys, self._runtime)
        self._changes = LineChanges(self._channel, self._keys, self._runtime, self._heard)

    def forked(self) -> None:
        """In the child after a fork: drop everything inherited without a word to the server."""
        self._claims.pushes.forked()
        self._changes.forked()
        self._channel.reset()
        self._keepers.reset()
        self._begin()

    # -- enter -------------------------------------------------------------------------------------

    async def _enter(self, claim: Claim, wait: bool, until: float) -> Grant | Waiting | None:
        value, line = self._keys.value_of(claim), self._keys.line(claim.name)
        while True:
            own = self._claims.own(claim)
            if not wait and not own.create and own.late is None and not await self._has_room(claim, until):
                return None
            sent = self._runtime.now()
            session = await self._sessions.ready(claim.ttl, sent, until, insist=wait)
            known = self._claims.in_the_way(claim)
            fence = self._keys.fence(session.id, claim.id)
            steps = commands.enter(own.key, value, session.id, fence, session.fences.get(fence, 0))
            before, own.late = own.late, session
            self._claims.note(own)
            try:
                answer = await self._channel.transact(
                    steps if known else [*steps, commands.look(line)], until, insist=wait, only_in_time=True
                )
            except BackendUnavailable as problem:
                if before is None and problem.unsent:
                    self._not_applied(own)
                raise
            if before is None and not answer.repeated:
                own.late = None
            if answer.failed:
                if not await self._take_in(own, session, answer, sent, until):
                    continue
            else:
                put = next(entry for entry in answer.entries if entry["Key"] == own.key)
                own.stand(session, put["CreateIndex"], put["ModifyIndex"], sent + claim.ttl)
            self._claims.keep(own)
            if answer.failed:
                return await self._settle(own, wait, until, await self._look(own, until))
            if known:
                self._claims.wait_behind(own, known)
                return Waiting(len(known))
            seen = told_claims(entry for entry in answer.entries if entry["Key"].startswith(line))
            self._claims.sightings.note(seen)
            return await self._settle(own, wait, until, self._judge(own, seen))

    async def _settle(
        self, own: ConsulClaim, wait: bool, until: float, answer: Grant | Waiting | Gone
    ) -> Grant | Waiting | None:
        """What is told to a claim that has just come."""
        if isinstance(answer, Waiting) and not wait:
            # Somebody was quicker.
            await self.leave(own.claim, until)
            return None
        return Waiting(0) if isinstance(answer, Gone) else answer

    async def _has_room(self, claim: Claim, until: float) -> bool:
        """Whether the line has room for one more like this; who has run out is removed from it."""
        while True:
            line = await self._claims.sightings.line(claim.name, until, insist=False)
            if not blockers(line, claim):
                return True
            if not await self._claims.sightings.bury(line, until):
                return False

    async def _take_in(
        self, own: ConsulClaim, session: ServerSession, answer: Transacted, sent: float, until: float
    ) -> bool:
        """Why it could not enter: True if an earlier request of ours has put it there, False if it has to try again."""
        key = self._keys.session(session.id)
        looks = [commands.look(own.key), commands.look(key)]
        found = {entry["Key"]: entry for entry in (await self._channel.transact(looks, until, consistent=True)).entries}
        entry = found.pop(own.key, None)
        session.fences.update((fence, there["ModifyIndex"]) for fence, there in found.items())
        if key not in found and (session.present or "invalid session" in answer.why):
            self._sessions.lose(session)
        if entry is None:
            return False
        if not own.create:
            carrier = self._sessions.called(entry.get("Session")) or session
            own.stand(carrier, entry["CreateIndex"], entry["ModifyIndex"], sent + own.claim.ttl)
        return True

    def _judge(self, own: ConsulClaim, line: Sequence[ToldClaim]) -> Grant | Waiting:
        """Where the claim stands in this line."""
        ahead = [claim for claim in line if claim.create < own.create]
        keepers = blockers(ahead, own.claim)
        if not keepers:
            return Grant(own.create)
        self._claims.wait_behind(own, keepers)
        return Waiting(len(ahead), ticket=own.create, behind=ahead[-1].id)

    # -- place -------------------------------------------------------------------------------------

    async def _place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        """Where the claim stands now; those in its way are watched until it is looked at again."""
        own = self._claims.get(claim.id)
        if own is None or own.carrier is None:
            return Gone()
        if own.ahead == []:
            return Grant(own.create)
        stands = Waiting(len(own.ahead or ()))
        if own.ahead is None or self._runtime.now() >= own.trusts:
            answer = await self._look(own, until)
            if not isinstance(answer, Waiting):
                return answer
            stands = answer
        self._claims.pushes.listen()
        self._claims.watch(own)
        return stands._replace(look_by=own.trusts)

    async def _look(self, own: ConsulClaim, until: float) -> Grant | Waiting | Gone:
        """Where the claim stands now, by one look at its line.

        However old what is seen: who has room keeps it, because nobody can come ahead any more. Only "not there" has to be asked of
        the quorum.
        """
        consistent = False
        while True:
            line = await self._claims.sightings.line(own.claim.name, until, consistent=consistent)
            if not any(claim.key == own.key and claim.create == own.create for claim in line):
                if consistent:
                    self._claims.drop(own.claim.id)
                    return Gone()
                consistent = True
                continue
            answer = self._judge(own, line)
            dead = [claim for claim in line if claim.create < own.create]
            if isinstance(answer, Grant) or not await self._claims.sightings.bury(dead, until):
                return answer

    # -- the end of claims, and what keeps them from it --------------------------------------------

    async def leave(self, claim: Claim, until: float, *, heir: str = "") -> bool:
        """Remove this claim and no other, waiting or holding; whether it was still there."""
        return (await self._claims.leave([claim], until, heir=heir))[0]

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        """As `leave`, for many, in few transactions."""
        return await self._claims.leave(claims, until, insist=False)

    async def watch(self, name: str, watcher: str, until: float) -> bool:
        """Tell a hint for `begun(watcher)` as soon as the next change of the line will be told, one for the watcher when it comes; whether it can."""
        return self._changes.watch(name, watcher)

    async def unwatch(self, watcher: str) -> None:
        """Nobody is there to be told any more."""
        self._changes.unwatch(watcher)

    def ceiling(self, claim: Claim) -> Ceiling:
        """Until when the session that carries an entered claim may be trusted."""
        own = self._claims.get(claim.id)
        return Ceiling(0.0) if own is None else SessionCeiling(own)

    # -- questions ---------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Line:
        """The whole line, without changing it."""
        return await inspection.look(self._claims, name, self._runtime.now, until)

    async def list(self, prefix: str, until: float) -> list[str]:
        """The names that have a live claim, sorted."""
        return await inspection.names(self._channel, self._keys, prefix, until)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        """Remove the holders of the line (with a token: the one who has it), let in the next, tell them; how many."""
        return await inspection.evict(self._claims, self._channel, self._keys, name, token, until)

    async def examine(self, until: float) -> list[Finding]:  # type: ignore[valid-type]
        """What is good and what is dangerous about this cluster as it is set up."""
        return await doctor.findings(self._channel, self._keys, self._sessions, until)

    def guard(self, claim: Claim, token: int) -> dict[str, Any]:
        """The operation that makes a transaction of Consul fail once this claim is gone: put it first in yours."""
        own = self._claims.get(claim.id)
        there = own is not None and own.create == token and own.carrier is not None
        session = own.carrier.id if there and own is not None and own.carrier is not None else NO_SESSION
        return {"KV": {"Verb": "check-session", "Key": self._keys.claim(claim), "Session": session}}

    # -- hints, and the end ------------------------------------------------------------------------

    async def attend(self) -> None:
        """Listen for what is said about claims that are held."""
        if not self._claims.idle():
            self._claims.pushes.listen()

    async def close(self) -> None:
        """Give the sessions back, let go of the connections."""
        until = self._runtime.now() + FAREWELL
        await self._changes.stop(until)
        await self._claims.stop(until)
        try:
            await self._sessions.destroy_all(until)
        except LocklineError:
            pass  # they end by themselves
        finally:
            self._channel.close()
            self._keepers.close()
