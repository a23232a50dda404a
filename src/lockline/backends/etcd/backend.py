"""etcd as a backend: a claim is a key, its create revision its place in the line, and etcd's own transactions do the rest."""

from __future__ import annotations

import base64
import random
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from ...core.backend import Finding
from ...core.claim import Claim, Gone, Grant, Line, Waiting
from ...core.rule import blockers
from ...errors import BackendUnavailable, LocklineError
from ...runtime import Runtime
from ..keyed.backend import KeyedBackend, by_consensus
from . import commands, doctor, inspection
from . import messages as m
from .channel import NOT_FOUND, EtcdChannel
from .claims import EtcdClaim, EtcdClaims
from .clock import MemberClock
from .commands import RANGE, REVOKE, Keys, SeenClaim, seen_claim, seen_claims
from .grpc import NEWCOMERS, GrpcRefused
from .keeping import EtcdKeeping
from .leases import EtcdLeases, ServerLease
from .subscription import Watches
from .target import EtcdTarget

GUARANTEES: Final = by_consensus(
    "A minority of the members may fail, restart or be cut off, and messages may be lost or late; a restored "
    "backup takes the tokens back to its own age."
)
NET: Final = 60.0
"""How long a waiter trusts a silent watch, or up to twice as long: many who came together need not look together. The
keeper's renewals find a dead connection much sooner."""
FAREWELL: Final = 1.0


class EtcdBackend(KeyedBackend[EtcdClaims]):
    """One client of a cluster."""

    guarantees = GUARANTEES
    at_once = NEWCOMERS

    def __init__(self, target: EtcdTarget, runtime: Runtime) -> None:
        super().__init__(target.url, runtime)
        self._target = target
        self._channel = EtcdChannel(target, runtime, self._cut)
        self.reader = self._channel if self._channel.blocking else None
        self._begin()

    def _begin(self) -> None:
        self._keys = Keys(self._target.prefix, secrets.token_hex(8))
        self._leases = EtcdLeases(self._channel, self._runtime, lambda lease: self._claims.lose_all(lease))
        self._claims = EtcdClaims(self._channel, self._leases, self._keys, self._runtime, self._heard)
        self._watches = Watches(
            self._channel, self._runtime.section(), self._keys.home, self._heard, self._heard_home
        )  # fmt: skip
        clock = MemberClock(self._target, self._channel, self._runtime)
        self._keeping = EtcdKeeping(self._channel, self._keys, clock, self._runtime)
        self._history_is_gone = False

    def forked(self) -> None:
        """In the child after a fork: drop everything inherited without a word to the server."""
        self._channel.reset()
        self._begin()

    # -- enter -------------------------------------------------------------------------------------

    async def _enter(self, claim: Claim, wait: bool, until: float) -> Grant | Waiting | None:
        keys, line = self._keys, self._keys.line(claim.name)
        value = keys.value_of(claim)
        room_at = None if wait else 0
        way = self._channel if wait else self._channel.brief
        while True:
            own = self._claims.own(claim)
            sent = self._runtime.now()
            lease, renewal = await self._leases.ready(claim.ttl, sent, until, way)
            session, generation = keys.session(lease.id), lease.generation
            request = commands.enter(
                own.key, value, lease.id, line, keys.fence, session, generation, claim.capacity, room_at
            )
            before, own.late = own.late, lease
            self._claims.note(own)
            try:
                answer, repeated = await way.transact(request, until, who="newcomer")
            except BackendUnavailable as problem:
                refused = problem if isinstance(problem, GrpcRefused) else None
                if before is None and (problem.unsent or (refused is not None and not refused.repeated)):
                    self._not_applied(own)
                if refused is None or refused.code != NOT_FOUND:
                    raise
                self._leases.lose(lease)
                continue
            surely_over = before is None and not repeated
            if answer.succeeded:
                _, raised, look = answer.responses
                seen, token = look.response_range, raised.response_put.prev_kv.version + 1
                own.stand(lease, answer.header.revision, token, sent + claim.ttl)
            else:
                if surely_over:
                    self._not_applied(own)
                found, session_now, seen = (reply.response_range for reply in answer.responses)
                if found.kvs:
                    if not await self._take_in(own, found.kvs[0], lease, sent + claim.ttl, until):
                        # Compacted away: nobody can tell any more which token it took. A fresh place has one of its own.
                        await self._claims.remove([own], until)
                        continue
                elif (moved_on := session_now.kvs[0].mod_revision if session_now.kvs else 0) != generation:
                    lease.generation = moved_on
                    continue
                else:
                    room_at = await self._room(claim, seen, answer.header.revision, until)
                    if room_at is not None:
                        continue
                    if own.late is not None:
                        # An earlier try may still be on its way, and find room where this one did not.
                        await self.leave(claim, until)
                    return None
            if surely_over:
                own.late = None
            self._claims.keep(own)
            if not renewal.confirm(answer.header.raft_term) and not await self._secure(own, until) and own.gone:
                continue
            return await self._place_seen(own, seen, answer.header.revision, until)

    async def _room(self, claim: Claim, seen: Any, revision: int, until: float) -> int | None:
        """The revision at which the line had room for one more like this; None if it had not."""
        if blockers(_ahead(seen.kvs), claim):
            return None
        if seen.more:
            seen = await self._channel.ask(RANGE, commands.whole_line(self._keys.line(claim.name)), until)
            if blockers(seen_claims(seen.kvs), claim):
                return None
            revision = seen.header.revision
        return revision

    async def _place_seen(self, own: EtcdClaim, seen: Any, revision: int, until: float) -> Grant | Waiting:
        """Where the claim stands, by the line as the transaction saw it."""
        if seen.kvs and seen.kvs[0].key == own.key:
            answer = self._judge(own, seen, max(seen.count - 1, 1), revision) or await self._look(
                own, until, whole=True
            )
        else:
            # A repeat: others have come since, and the end of the line says nothing of its place.
            answer = await self._look(own, until, serializable=False)
        return Waiting(0) if isinstance(answer, Gone) else answer

    def _judge(self, own: EtcdClaim, seen: Any, ahead: int, revision: int) -> Grant | Waiting | None:
        """Where the claim stands, by the line from it towards its head; None if that has to be seen further."""
        keepers = blockers(_ahead(seen.kvs[1:]), own.claim)
        if keepers:
            own.ahead, own.revision = keepers, revision
            own.trusts = self._runtime.now() + NET * random.uniform(1, 2)
            return _waits(own, keepers, ahead)
        return None if seen.more else Grant(own.token)

    async def _take_in(self, own: EtcdClaim, kv: Any, lease: ServerLease, expires: float, until: float) -> bool:
        """Take in a claim that an earlier request of ours has put there; False if its token is not known any more."""
        if own.create:
            return True
        told, create = seen_claim(kv), kv.create_revision
        token = told.token if told is not None else 0
        token = token or (await inspection.tokens(self._channel, self._keys.fence, [create], until))[0]
        if token:
            carrier = self._leases.called(kv.lease) or lease
            own.stand(carrier, create, token, expires, kv.mod_revision)
        return bool(token)

    async def _secure(self, own: EtcdClaim, until: float) -> bool:
        """Renew the claim's lease until a quorum confirms it; whether the claim lives."""
        (fate,) = await self.renew([own.claim], until)
        return fate is None

    # -- place -------------------------------------------------------------------------------------

    async def _place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        """Where the claim stands now; whoever decides its turn is watched until it is looked at again."""
        while True:
            own = self._claims.get(claim.id)
            if own is None or own.carrier is None:
                self._watches.drop(claim.id)
                return Gone()
            if own.ahead is None or self._runtime.now() >= own.trusts:
                answer = await self._look(own, until)
                if not isinstance(answer, Waiting):
                    self._watches.drop(claim.id)
                    return answer
            await self._listen_at_home(own.carrier, until)
            # Puts matter only for a writer, who may become a reader in its place.
            keepers = own.ahead
            keys = [(ahead.key, ahead.kind == "write") for ahead in keepers or ()]
            if keepers is not None and self._watches.watch(claim.id, keys, own.revision):
                return _waits(own, keepers, len(keys))._replace(look_by=own.trusts)
            # The connection went meanwhile, or something was heard already.
            own.ahead = None
            await self._runtime.sleep(0.01)

    async def _listen_at_home(self, lease: ServerLease, until: float) -> None:
        """Be told when the lease dies: put the lease's session key and watch it."""
        if not lease.present:
            request = m.TxnRequest(success=[commands.put(self._keys.session(lease.id), b"", lease.id)])
            try:
                answer, _ = await self._channel.transact(request, until)
            except GrpcRefused as refused:
                if refused.code != NOT_FOUND:
                    raise
                self._leases.lose(lease)
                return
            lease.was_put(answer.header.revision)
        if not self._watches.at_home:
            self._watches.watch_home(0 if self._history_is_gone else lease.generation)

    async def _look(
        self, own: EtcdClaim, until: float, *, serializable: bool = True, whole: bool = False
    ) -> Grant | Waiting | Gone:
        """Where the claim stands now, by one look at what is ahead of it.

        A member's own state is enough, however old: who has room keeps it, because nobody can come ahead any more. Only
        "not there" has to be asked of the quorum.
        """
        claim, line = own.claim, self._keys.line(own.claim.name)
        limit = 0 if whole else min(claim.capacity, commands.ENOUGH) + 2
        while True:
            request = commands.line_back_from(line, own.create, limit, serializable)
            seen = await self._channel.ask(RANGE, request, until)
            if serializable and seen.header.revision < self._watches.revision:
                serializable = False
                continue
            if not seen.kvs or seen.kvs[0].create_revision != own.create:
                if serializable:
                    serializable = False
                    continue
                self._claims.drop(claim.id)
                return Gone()
            answer = self._judge(own, seen, len(seen.kvs) - 1, seen.header.revision)
            if answer is not None:
                return answer
            limit = 0

    # -- the end of claims, and what keeps them from it --------------------------------------------

    async def leave(self, claim: Claim, until: float, *, heir: str = "") -> bool:
        """Remove this claim and no other, waiting or holding; whether it was still there."""
        self._watches.drop(claim.id)
        # It knows, and watches nobody's end any more.
        self._watches.drop(heir)
        self._claims.granted(heir)
        return (await self._claims.leave([claim], self._channel, until))[0]

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        """As `leave`, for many, in few transactions."""
        for claim in claims:
            self._watches.drop(claim.id)
        return await self._claims.leave(claims, self._channel.brief, until)

    async def watch(self, name: str, watcher: str, until: float) -> bool:
        """Tell a hint for `begun(watcher)` as soon as the next change of the line will be told, and one for the watcher when it comes."""
        line = self._keys.line(name)
        if self._watches.watch_line(watcher, line):
            return True
        # There is no connection yet, or no more: any question makes one.
        await self._channel.brief.ask(RANGE, commands.whole_line(line), until)
        return self._watches.watch_line(watcher, line)

    async def unwatch(self, watcher: str) -> None:
        """Nobody is there to be told any more."""
        self._watches.drop(watcher)

    # -- questions ---------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Line:
        """The whole line, without changing it."""
        mine = {own.claim.id: own for own in self._claims.standing()}
        return await inspection.look(self._channel.brief, self._keys, name, mine, until)

    async def list(self, prefix: str, until: float) -> list[str]:
        """The names that have a live claim, sorted."""
        return await inspection.names(self._channel.brief, self._keys, prefix, until)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        """Remove the holders of the line (with a token: the one who has it), let in the next, tell them; how many."""
        return await inspection.evict(self._channel.brief, self._keys, name, token, until)

    async def examine(self, until: float) -> list[Finding]:  # type: ignore[valid-type]
        """What is good and what is dangerous about this cluster as it is set up."""
        return await doctor.findings(self._channel.brief, self._target, self._keys, until)

    def guard(self, claim: Claim, token: int) -> dict[str, str]:
        """The compare that makes an etcd transaction fail once this claim is gone, as etcd's JSON (and protobuf's) form."""
        own = self._claims.get(claim.id)
        return {
            "target": "CREATE",
            "result": "EQUAL",
            "key": base64.b64encode(self._keys.claim(claim)).decode(),
            # A revision that no key has: a claim that is gone already guards nothing.
            "create_revision": str(own.create if own is not None and own.token == token else -1),
        }

    # -- hints, and the end ------------------------------------------------------------------------

    async def attend(self) -> None:
        """Read what lies unread, and listen for what is said about claims that are held."""
        link = self._channel.link
        if link is not None:
            link.glance()
            claims = self._claims.standing()
            if claims and not self._watches.at_home:
                # From our oldest claim on, so that nothing is missed that was said before we listened.
                self._watches.watch_home(0 if self._history_is_gone else min(own.create for own in claims))
            if self._watches.at_home:
                # Not without a stream: etcd takes signs of life that are asked for then for an attack.
                self._channel.mind()

    def _cut(self) -> None:
        self._watches.cut()
        for own in self._claims.standing():
            own.ahead = None
        self._hints.heard_all()

    def _heard_home(self, key: bytes, deleted: bool) -> None:
        if not key:
            # The past is compacted away: whatever it would have told, a renewal tells as well.
            self._history_is_gone = True
            for own in self._claims.standing():
                self._hints.heard(own.claim.id)
            return
        what, _, name = key[len(self._keys.home) :].partition(b"/")
        if what == b"session" and deleted:
            for lease in self._leases.all():
                if b"%x" % lease.id == name:
                    self._leases.lose(lease)
        elif what == b"evicted" and not deleted:
            self._hints.heard(name.decode())

    async def close(self) -> None:
        """Give the leases back, let go of the connection."""
        until = self._runtime.now() + FAREWELL
        await self._claims.stop(until)
        try:
            for lease in self._leases.all() if self._channel.link is not None else ():
                with suppress(GrpcRefused):  # it has ended already
                    await self._channel.ask(REVOKE, m.LeaseRevokeRequest(ID=lease.id), until)
        except LocklineError:
            pass  # they end by themselves
        finally:
            self._leases.reset()
            self._channel.close()


def _ahead(kvs: Sequence[Any]) -> list[SeenClaim]:
    """Claims in order of arrival, from an answer that begins at the end."""
    return seen_claims(reversed(kvs))


def _waits(own: EtcdClaim, keepers: Sequence[SeenClaim], ahead: int) -> Waiting:
    """Who needs all there is waits for the one directly ahead."""
    return Waiting(ahead, ticket=own.token, behind=keepers[-1].id)
