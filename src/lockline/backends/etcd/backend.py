"""etcd as a backend: a claim is a key, its create revision its place in the line, and etcd's own transactions do the rest."""

from __future__ import annotations

import base64
import random
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from ...core.backend import Finding
from ...core.claim import Claim, Gone, Grant, Line, Unanswered, Waiting
from ...core.rule import blockers
from ...core.waiting import Hints
from ...errors import BackendUnavailable, LocklineError
from ...guarantees import Guarantees
from ...runtime import Runtime
from . import channel as ways
from . import commands, doctor, inspection
from . import messages as m
from .channel import NOT_FOUND, Channel
from .claims import EtcdClaim, EtcdClaims
from .connection import Refused
from .keys import Keys, SeenClaim, claims, stood, value_of
from .leases import Leases, ServerLease
from .removals import Removals
from .renewals import Renewals
from .subscription import Watches
from .target import EtcdTarget

GUARANTEES: Final = Guarantees(
    exclusion="consensus",
    fifo=True,
    push=True,
    token_survives=frozenset({"release", "expiry", "restart", "failover"}),
    tolerates="A minority of the members may fail, restart or be cut off, and messages may be lost or late; a restored "
    "backup takes the tokens back to its own age.",
)
NET: Final = 60.0
"""How long a waiter trusts a silent watch, or up to twice as long: many who came together need not look together. The
keeper's renewals find a dead connection much sooner."""
FAREWELL: Final = 1.0


class EtcdBackend:
    """One client of a cluster."""

    guarantees = GUARANTEES

    def __init__(self, target: EtcdTarget, runtime: Runtime) -> None:
        self.url = target.url
        self._target = target
        self._runtime = runtime
        self._keys = Keys(target.prefix)
        self._channel = Channel(target, runtime, self._cut)
        self._leases = Leases(self._channel, runtime, self._lease_died)
        self._places = EtcdClaims(runtime, self._expire)
        self.reader = self if runtime.flavour == "blocking" else None
        self._begin()

    def _begin(self) -> None:
        self._client = secrets.token_hex(8)
        self._doubts: dict[str, ServerLease] = {}
        """Claims whose `enter` went out and was not answered, with the lease that it named."""
        self._watches = Watches(
            self._channel,
            self._runtime.section(),
            self._keys.client(self._client),
            self._heard,
            self._heard_home,
        )
        self._removals = Removals(
            self._channel, self._leases, self._places, self._keys, self._client, self._runtime, self._doubts
        )
        self._renewals = Renewals(
            self._channel, self._leases, self._places, self._keys, self._client, self._runtime, self._lose,
            self._removals.remove,
        )  # fmt: skip
        self._history_is_gone = False

    def forked(self) -> None:
        """In the child after a fork: drop everything inherited without a word to the server."""
        self._channel.reset()
        self._leases.reset()
        self._places.reset()
        self._begin()

    # -- enter -------------------------------------------------------------------------------------

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        """Put the claim at the end of its line; with `wait` false, only if it would hold at once (else None)."""
        try:
            return await self._enter(claim, wait, until)
        except BackendUnavailable as problem:
            # A question that was put after the claim may itself not have gone out: that does not count.
            problem.unsent = claim.id not in self._doubts and self._places.get(claim.id) is None
            raise

    async def _enter(self, claim: Claim, wait: bool, until: float) -> Grant | Waiting | None:
        key, line = self._keys.claim(claim), self._keys.line(claim.name)
        value = value_of(claim, self._client)
        room_at = None if wait else 0
        way = self._channel if wait else self._channel.brief
        repeats: list[None] = []
        doubted = claim.id in self._doubts
        while True:
            sent = self._runtime.now()
            lease, renewal = await self._leases.ready(claim.ttl, sent, until, way)
            session, generation = self._keys.session(self._client, lease.id), lease.generation
            request = commands.enter(
                key, value, lease.id, line, self._keys.fence, session, generation, claim.capacity, room_at
            )
            self._doubts[claim.id] = lease
            try:
                answer = await way.ask(
                    ways.TXN, request, "TxnResponse", until, repeated=lambda: repeats.append(None), newcomer=True
                )
            except BackendUnavailable as problem:
                # Not applied: it was refused, or it never went out.
                if (isinstance(problem, Refused) or problem.unsent) and not repeats and not doubted:
                    self._doubts.pop(claim.id, None)
                if isinstance(problem, Refused) and problem.code == NOT_FOUND:
                    self._leases.bury(lease)
                    continue
                raise
            if not answer.succeeded and not repeats and not doubted:
                self._doubts.pop(claim.id, None)
            replies = answer.responses
            if answer.succeeded:
                token, seen = replies[1].response_put.prev_kv.version + 1, replies[2].response_range
                place = EtcdClaim(claim, key, answer.header.revision, token, lease, sent + claim.ttl)
            else:
                own, session_now, seen = (reply.response_range for reply in replies)
                if own.kvs:
                    place = await self._found_again(claim, own.kvs[0], lease, sent, until)
                    if not place.token:
                        # Compacted away: nobody can tell any more which it took. A fresh place has a token of its own.
                        await self._removals.remove(place, until)
                        continue
                elif (moved_on := session_now.kvs[0].mod_revision if session_now.kvs else 0) != generation:
                    lease.generation = moved_on
                    continue
                else:
                    room_at = await self._room(claim, seen, answer.header.revision, until)
                    if room_at is not None:
                        continue
                    if repeats:
                        # An earlier try may still be on its way, and find room where this one did not.
                        await self.leave(claim, until)
                    self._doubts.pop(claim.id, None)
                    return None
            place.repeated = place.repeated or bool(repeats)
            self._places.add(place)
            self._doubts.pop(claim.id, None)
            if not renewal.confirm(answer.header.raft_term) and not await self._secure(place, until) and place.gone:
                continue
            return await self._placed(place, seen, answer.header.revision, until)

    async def _room(self, claim: Claim, seen: Any, revision: int, until: float) -> int | None:
        """The revision at which the line had room for one more like this; None if it had not."""
        if blockers(_ahead(seen.kvs), claim):
            return None
        if seen.more:
            seen = await self._range(commands.whole_line(self._keys.line(claim.name)), until)
            if blockers(claims(seen.kvs), claim):
                return None
            revision = seen.header.revision
        return revision

    async def _placed(self, place: EtcdClaim, seen: Any, revision: int, until: float) -> Grant | Waiting:
        """Where the claim stands, by the line as the transaction saw it."""
        if not seen.kvs or seen.kvs[0].key != place.key:
            # A repeat: others have come since, and the end of the line says nothing of its place.
            answer = await self._standing(place, until, serializable=False)
            return Waiting(0) if isinstance(answer, Gone) else answer
        keepers = blockers(_ahead(seen.kvs[1:]), place.claim)
        if not keepers:
            if not seen.more:
                return Grant(place.token)
            answer = await self._standing(place, until, whole=True)
            return Waiting(0) if isinstance(answer, Gone) else answer
        place.look(keepers, revision, self._runtime.now() + NET * random.uniform(1, 2))
        return Waiting(max(seen.count - 1, 1))

    async def _found_again(self, claim: Claim, kv: Any, lease: ServerLease, sent: float, until: float) -> EtcdClaim:
        """The place of a claim that an earlier request of ours has put there."""
        known = self._places.get(claim.id)
        if known is not None:
            return known
        told, create = stood(kv), kv.create_revision
        token = told.token if told is not None else 0
        token = token or (await inspection.tokens(self._channel, self._keys.fence, [create], until))[0]
        owner = next((known for known in self._leases.all() if known.id == kv.lease), lease)
        place = EtcdClaim(claim, kv.key, create, token, owner, sent + claim.ttl)
        place.changed = kv.mod_revision
        return place

    async def _secure(self, place: EtcdClaim, until: float) -> bool:
        """Renew the claim's lease until a quorum confirms it; whether the claim lives."""
        (fate,) = await self.renew([place.claim], until)
        return fate is None

    # -- place -------------------------------------------------------------------------------------

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        """Where the claim stands now; whoever decides its turn is watched until it is looked at again."""
        while True:
            place = self._places.get(claim.id)
            if place is None or place.gone:
                self._watches.drop(claim.id)
                return Gone()
            if place.ahead is None or self._runtime.now() >= place.trusts:
                answer = await self._standing(place, until)
                if not isinstance(answer, Waiting):
                    self._watches.drop(claim.id)
                    return answer
            await self._at_home(place, until)
            # Puts matter only for a writer, who may become a reader in its place.
            keys = [(ahead.key, ahead.kind == "write") for ahead in place.ahead or ()]
            if place.ahead is not None and self._watches.watch(claim.id, keys, place.revision):
                return Waiting(len(keys), place.trusts)
            # The connection went meanwhile, or something was heard already.
            place.ahead = None
            await self._runtime.sleep(0.01)

    def report_to(self, hints: Hints) -> None:
        """Where to pass on what is pushed."""
        self._hints = hints

    def _heard(self, claim_id: str) -> None:
        """What was seen of the line no longer stands."""
        place = self._places.get(claim_id)
        if place is not None:
            place.ahead = None
        self._hints.heard(claim_id)

    async def _at_home(self, place: EtcdClaim, until: float) -> None:
        """Be told when the lease dies: put the lease's session key and watch it."""
        lease = place.lease
        if not lease.present:
            key = self._keys.session(self._client, lease.id)
            request = m.TxnRequest(success=[commands.put(key, b"", lease.id)])
            try:
                answer = await self._channel.ask(ways.TXN, request, "TxnResponse", until)
            except Refused as refused:
                if refused.code != NOT_FOUND:
                    raise
                self._leases.bury(lease)
                return
            lease.generation = max(lease.generation, answer.header.revision)
            lease.present = True
        if not self._watches.at_home:
            self._watches.watch_home(0 if self._history_is_gone else lease.generation)

    async def _standing(
        self, place: EtcdClaim, until: float, *, serializable: bool = True, whole: bool = False
    ) -> Grant | Waiting | Gone:
        """Where the claim stands now, by one look at what is ahead of it.

        A member's own state is enough, however old: who has room keeps it, because nobody can come ahead any more. Only
        "not there" has to be asked of the quorum.
        """
        claim, line = place.claim, self._keys.line(place.claim.name)
        limit = 0 if whole else min(claim.capacity, commands.ENOUGH) + 2
        while True:
            seen = await self._range(commands.line_back_from(line, place.create, limit, serializable), until)
            if serializable and seen.header.revision < self._watches.revision:
                serializable = False
                continue
            if not seen.kvs or seen.kvs[0].create_revision != place.create:
                if serializable:
                    serializable = False
                    continue
                self._places.drop(claim.id)
                return Gone()
            keepers = blockers(_ahead(seen.kvs[1:]), claim)
            if not keepers and seen.more:
                limit = 0
                continue
            if not keepers:
                return Grant(place.token)
            place.look(keepers, seen.header.revision, self._runtime.now() + NET * random.uniform(1, 2))
            return Waiting(len(seen.kvs) - 1)

    # -- leave -------------------------------------------------------------------------------------

    async def leave(self, claim: Claim, until: float) -> bool:
        """Remove this claim and no other, waiting or holding; whether it was still there."""
        self._forget(claim.id)
        return await self._removals.leave(claim, until)

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        """As `leave`, for many, in few transactions."""
        for claim in claims:
            self._forget(claim.id)
        return await self._removals.leave_all(claims, until)

    def _forget(self, claim_id: str) -> None:
        self._watches.drop(claim_id)

    async def _expire(self, place: EtcdClaim) -> None:
        """The sweeper: this claim's ttl is over, though the server's lease lasts longer."""
        await self._removals.remove(place, self._runtime.now() + 2.0)
        self._lose(place)

    # -- renew -------------------------------------------------------------------------------------

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        """Give each claim its ttl again from now, never less than it has; None for each that lives on."""
        return await self._renewals.renew(claims, until)

    def _lose(self, place: EtcdClaim) -> None:
        place.gone = True
        self._places.drop(place.claim.id)
        self._hints.heard(place.claim.id)

    def _lease_died(self, lease: ServerLease) -> None:
        for place in self._places.all():
            if place.lease is lease:
                place.gone = True
                self._places.drop(place.claim.id)
                self._hints.heard(place.claim.id)

    # -- questions ---------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Line:
        """The whole line, without changing it."""
        mine = {place.claim.id: place for place in self._places.all()}
        return await inspection.look(self._channel.brief, self._keys, name, mine, until)

    async def list(self, prefix: str, until: float) -> list[str]:
        """The names that have a live claim, sorted."""
        return await inspection.names(self._channel.brief, self._keys, prefix, until)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        """Remove the holders of the line (with a token: the one who has it), let in the next, tell them; how many."""
        return await inspection.evict(self._channel.brief, self._keys, name, token, until)

    async def attend(self) -> None:
        """Read what lies unread, and listen for what is said about claims that are held."""
        link = self._channel.link
        if link is not None:
            link.glance()
            places = self._places.all()
            if places and not self._watches.at_home:
                # From our oldest claim on, so that nothing is missed that was said before we listened.
                oldest = 0 if self._history_is_gone else min(place.create for place in places)
                self._watches.watch_home(oldest)

    async def examine(self, until: float) -> list[Finding]:  # type: ignore[valid-type]
        """What is good and what is dangerous about this cluster as it is set up."""
        return await doctor.findings(self._channel.brief, self._target, self._keys, until)

    def guard(self, claim: Claim, token: int) -> dict[str, str]:
        """The compare that makes an etcd transaction fail once this claim is gone, as etcd's JSON (and protobuf's) form."""
        place = self._places.get(claim.id)
        return {
            "target": "CREATE",
            "result": "EQUAL",
            "key": base64.b64encode(self._keys.claim(claim)).decode(),
            # A revision that no key has: a claim that is gone already guards nothing.
            "create_revision": str(place.create if place is not None and place.token == token else -1),
        }

    async def _range(self, request: Any, until: float) -> Any:
        return await self._channel.ask(ways.RANGE, request, "RangeResponse", until)

    # -- hints, and the end ------------------------------------------------------------------------

    def receive(self, seconds: float) -> list[str]:  # type: ignore[valid-type]
        """Blocking: read for all, until a hint has come."""
        link = self._channel.link
        now = self._runtime.now()
        if link is not None:
            link.receive(now + seconds)
        else:
            # Whoever waits was told when the connection went, and is about to make another.
            time.sleep(min(seconds, 0.01))
        return []

    def nudge(self) -> None:
        """Make a `receive` in another thread return."""
        link = self._channel.link
        if link is not None:
            link.nudge()

    def _cut(self) -> None:
        self._watches.cut()
        for place in self._places.all():
            place.ahead = None
        self._hints.heard_all()

    def _heard_home(self, key: bytes, deleted: bool) -> None:
        if not key:
            # The past is compacted away: whatever it would have told, a renewal tells as well.
            self._history_is_gone = True
            for place in self._places.all():
                self._hints.heard(place.claim.id)
            return
        what, _, name = key[len(self._keys.client(self._client)) :].partition(b"/")
        if what == b"session" and deleted:
            for lease in self._leases.all():
                if b"%x" % lease.id == name:
                    self._leases.bury(lease)
        elif what == b"evicted" and not deleted:
            self._hints.heard(name.decode())

    async def close(self) -> None:
        """Give the leases back, let go of the connection."""
        until = self._runtime.now() + FAREWELL
        await self._places.stop(until)
        try:
            for lease in self._leases.all() if self._channel.link is not None else ():
                with suppress(Refused):  # it has ended already
                    await self._channel.ask(
                        ways.REVOKE, m.LeaseRevokeRequest(ID=lease.id), "LeaseRevokeResponse", until
                    )
        except LocklineError:
            pass  # they end by themselves
        finally:
            self._leases.reset()
            self._channel.close()


def _ahead(kvs: Sequence[Any]) -> list[SeenClaim]:
    """Claims in order of arrival, from an answer that begins at the end."""
    return claims(reversed(kvs))
