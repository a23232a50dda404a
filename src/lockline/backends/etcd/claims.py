"""What a client knows of its own claims; their renewal and their removal, by request or because nobody renewed them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from ...core.claim import Claim, Gone, Unanswered
from ...core.worker import Worker
from ...errors import BackendUnavailable, LocklineError
from ...runtime import Runtime
from . import commands
from . import messages as m
from .channel import NOT_FOUND, EtcdChannel, Way
from .commands import Keys, SeenClaim
from .grpc import GrpcRefused
from .leases import LeaseRenewal, Leases, ServerLease

log = logging.getLogger("lockline")

RENEWED_TOGETHER: Final = 100
REMOVED_TOGETHER: Final = 60
"""Claims per transaction; etcd takes 128 steps unless it is set up otherwise, and some that leave need two."""
A_TRY: Final = 2.0
"""How long the sweeper tries to remove one claim before it looks at the next."""
AGAIN: Final = 0.5
"""How long it waits after a try that failed."""
NEVER: Final = float("inf")


class EtcdClaim:
    """One claim of this client, from before the request that puts it into its line until it is known to be gone."""

    __slots__ = (
        "ahead", "changed", "claim", "create", "expires", "gone", "key", "late", "lease", "revision", "token", "trusts", "written",
    )  # fmt: skip

    def __init__(self, claim: Claim, key: bytes) -> None:
        self.claim = claim
        self.key = key
        self.late: ServerLease | None = None
        """What an `enter` hangs on that may still be on its way: no answer came, or it went out more than once."""
        self.lease: ServerLease | None = None
        self.create = self.token = 0
        """Its place and its token; 0 until it is known to stand."""
        self.expires = NEVER
        """When its ttl is over if it is not renewed. The server's lease may last longer, for others or by its rounding."""
        self.changed = 0
        """The revision at which its key was last put, as far as this client knows."""
        self.written = False
        """Whether the token has been written into the key, for others to read."""
        self.gone = False
        self.revision = 0
        self.ahead: list[SeenClaim] | None = None
        """Who kept it from holding at that revision; None when that has to be looked up."""
        self.trusts = 0.0
        """Until when it believes that, if no watch says otherwise."""

    def stand(self, lease: ServerLease, create: int, token: int, expires: float, changed: int = 0) -> None:
        """It is there."""
        self.lease, self.create, self.token, self.expires = lease, create, token, expires
        self.changed = changed or create

    @property
    def may_arrive(self) -> ServerLease | None:
        """The lease of a request to enter that could still be applied."""
        return self.late if self.late is not None and not self.late.dead else None

    def as_told(self, claim: Claim) -> Claim:
        """As others shall see it: lighter and of another kind if it became so, and its ttl never less than before."""
        known = claim if claim.weight < self.claim.weight else self.claim
        return known._replace(ttl=max(claim.ttl, self.claim.ttl))


Renewed = tuple[Claim, EtcdClaim, ServerLease]
"""A claim to be renewed as it is now, what is known of it, and the lease that is to carry it."""


class EtcdClaims:
    """The claims of one client, and a sweeper that removes those whose ttl is over while the server's lease goes on."""

    def __init__(
        self, channel: EtcdChannel, leases: Leases, keys: Keys, runtime: Runtime, tell: Callable[[str], None]
    ) -> None:
        self._channel = channel
        self._leases = leases
        self._keys = keys
        self._runtime = runtime
        self._tell = tell
        self._claims: dict[str, EtcdClaim] = {}
        self._sweeper = Worker(runtime, "lockline-etcd-sweeper", self._sweep, lambda: not self.standing())

    def get(self, claim_id: str) -> EtcdClaim | None:
        return self._claims.get(claim_id)

    def standing(self) -> list[EtcdClaim]:
        """Those of which more is known than that a request went out."""
        return [own for own in list(self._claims.values()) if own.expires != NEVER]

    def note(self, own: EtcdClaim) -> None:
        """A request to enter goes out for this one."""
        self._claims[own.claim.id] = own

    def keep(self, own: EtcdClaim) -> None:
        """See to its end, too."""
        self._claims[own.claim.id] = own
        self._sweeper.by(own.expires)

    def drop(self, claim_id: str) -> None:
        """Nothing of this claim is at the server, and nothing is on its way."""
        self._claims.pop(claim_id, None)

    def lose(self, own: EtcdClaim) -> None:
        """It is no more, and not by our own hand."""
        own.gone = True
        self.drop(own.claim.id)
        self._tell(own.claim.id)

    def lose_all(self, lease: ServerLease) -> None:
        """The server has ended this lease, and so every claim on it."""
        for own in self.standing():
            if own.lease is lease:
                self.lose(own)

    # -- renewal -----------------------------------------------------------------------------------

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        """Keep the leases alive and see that every claim stands, in as few transactions as that takes."""
        while True:
            sent = self._runtime.now()
            fates: dict[str, Gone | Unanswered | None] = {}
            living: list[Renewed] = []
            for claim in claims:
                own = self.get(claim.id)
                if own is None or own.lease is None or own.expires <= sent:
                    fates[claim.id] = Gone("expired" if own is not None and own.expires <= sent else None)
                    continue
                lease = own.lease
                if claim.ttl > lease.seconds:
                    # The server's lease has to last as long as the holder may trust it.
                    lease, _ = await self._leases.ready(claim.ttl, sent, until)
                living.append((claim, own, lease))
            if living:
                renewal = await self._leases.renew({lease for _, _, lease in living}, until)
                if not await self._verify(living, fates, renewal, sent, until):
                    continue
            return [fates[claim.id] for claim in claims]

    async def _verify(
        self, living: list[Renewed], fates: dict[str, Gone | Unanswered | None], renewal: LeaseRenewal, sent: float, until: float
    ) -> bool:  # fmt: skip
        """See that every claim still stands, and that the renewal counts; False when all has to be asked again."""
        again = False
        for start in range(0, len(living), RENEWED_TOGETHER):
            batch = living[start : start + RENEWED_TOGETHER]
            try:
                answer = await self._ask_quorum(batch, until)
            except GrpcRefused as refused:
                if refused.code != NOT_FOUND:
                    raise
                return False
            except BackendUnavailable as problem:
                if not start:
                    raise
                # What was confirmed before counts: were all asked for anew each time, a long list might never get through.
                fates.update((claim.id, Unanswered(problem)) for claim, _, _ in living[start:])
                return True
            seen = [self._take_in_reply(*one, reply) for one, reply in zip(batch, answer.responses[:-1], strict=True)]
            if not renewal.confirm(answer.header.raft_term):
                return False
            for (claim, own, lease), (there, told) in zip(batch, seen, strict=True):
                if lease.dead or not there:
                    self.lose(own)
                    if not lease.dead:
                        await self.remove(own, until)  # what is left of it: the note of an eviction
                    fates[claim.id] = Gone()
                elif told:
                    own.expires = max(own.expires, sent + claim.ttl)
                    fates[claim.id] = None
                else:
                    again = True
        return not again

    async def _ask_quorum(self, batch: list[Renewed], until: float) -> Any:
        steps = [self._step(*one) for one in batch]
        return (await self._channel.transact(commands.seen_by_a_quorum(steps, self._keys.nothing), until)).answer

    def _step(self, claim: Claim, own: EtcdClaim, lease: ServerLease) -> Any:
        """A look at the claim's key; or its key put anew, when something in it has changed."""
        if own.written and lease is own.lease and claim.weight >= own.claim.weight:
            return commands.still_there(own.key)
        value = self._keys.value_of(own.as_told(claim), own.token)
        return commands.rewritten(own.key, own.changed, value, lease.id)

    def _take_in_reply(self, claim: Claim, own: EtcdClaim, lease: ServerLease, reply: Any) -> tuple[bool, bool]:
        """Whether the claim stands, and whether its key says by now what it should."""
        told = reply.response_txn if reply.WhichOneof("choice") == "response_txn" else None
        kvs = (reply if told is None else told.responses[-1]).response_range.kvs
        if not kvs or kvs[0].create_revision != own.create:
            return False, False
        if told is None:
            return True, True
        # If not, another request of ours came between: an extension at the same time, or the first try of this one.
        last = bool(told.succeeded) and kvs[0].mod_revision > own.changed
        own.changed = max(own.changed, kvs[0].mod_revision)
        if last:
            own.written, own.lease, own.claim = True, lease, own.as_told(claim)
        return True, last

    # -- removal -----------------------------------------------------------------------------------

    async def leave(self, claims: Sequence[Claim], way: Way, until: float) -> list[bool]:
        """Remove these for good and no other with them, in few transactions; whether each was still there.

        Where some got no answer it raises, and may be asked again.
        """
        taken = [self.get(claim.id) or EtcdClaim(claim, self._keys.claim(claim)) for claim in claims]
        there: dict[str, bool] = {}
        try:
            for own in taken:
                self.drop(own.claim.id)
            for batch in _batches(taken):
                there.update(await self._remove(batch, way, until))
        except BaseException:
            # Their leases may be kept alive for other claims, so time alone does not remove them.
            now = self._runtime.now()
            for own in taken:
                if own.claim.id not in there and (own.lease is not None or own.late is not None):
                    own.expires = min(own.expires, now)
                    self.keep(own)
            raise
        now = self._runtime.now()
        return [there[own.claim.id] and (not own.create or own.expires > now) for own in taken]

    async def remove(self, own: EtcdClaim, until: float) -> bool:
        """Remove this claim from the server, for good; whether it was there."""
        return (await self._remove([own], self._channel, until))[own.claim.id]

    async def _remove(self, batch: list[EtcdClaim], way: Way, until: float) -> dict[str, bool]:
        """Remove these, all of them on the same `may_arrive`."""
        lease = batch[0].may_arrive
        if lease is not None:
            try:
                return await self._withdraw(lease, batch, way, until)
            except GrpcRefused as refused:
                if refused.code != NOT_FOUND:
                    raise
                self._leases.lose(lease)
        return await self._delete(batch, way, until)

    async def _withdraw(self, lease: ServerLease, batch: list[EtcdClaim], way: Way, until: float) -> dict[str, bool]:
        """Remove these claims, and keep their requests to enter from being applied after this."""
        keys = [(own.key, self._keys.note(own.claim.id)) for own in batch]
        answer, repeated = await way.transact(commands.withdraw(keys, self._keys.session(lease.id), lease.id), until)
        lease.was_put(answer.header.revision)
        for own in batch:
            own.late = None
        return {
            own.claim.id: _was_there(own, reply.response_delete_range.deleted > 0, repeated)
            for own, reply in zip(batch, answer.responses[1::2], strict=True)
        }

    async def _delete(self, batch: list[EtcdClaim], way: Way, until: float) -> dict[str, bool]:
        steps = [commands.leave(own.key, own.create, self._keys.note(own.claim.id)) for own in batch]
        if len(steps) == 1:
            answer, repeated = await way.transact(steps[0], until)
            answers = [answer]
        else:
            together = m.TxnRequest(success=[m.RequestOp(request_txn=step) for step in steps])
            answer, repeated = await way.transact(together, until)
            answers = [reply.response_txn for reply in answer.responses]
        return {
            own.claim.id: _was_there(
                own, one.succeeded and one.responses[0].response_delete_range.deleted > 0, repeated
            )
            for own, one in zip(batch, answers, strict=True)
        }

    # -- the sweeper -------------------------------------------------------------------------------

    async def _sweep(self) -> float:
        """Remove the claims whose ttl is over, though the server's lease lasts longer; when the next one's is."""
        now = self._runtime.now()
        swept = [await self._expire(own) for own in self.standing() if own.expires <= now]
        return min((own.expires for own in self.standing()), default=NEVER) if all(swept) else now + AGAIN

    async def _expire(self, own: EtcdClaim) -> bool:
        try:
            await self.remove(own, self._runtime.now() + A_TRY)
        except LocklineError as problem:
            # The server's lease is the net below.
            log.debug("removing the claim on %r whose ttl is over failed: %s", own.claim.name, problem)
            return False
        self.lose(own)
        return True

    async def stop(self, until: float) -> None:
        """End the sweeper."""
        await self._sweeper.stop(until)


def _batches(claims: Iterable[EtcdClaim]) -> Iterable[list[EtcdClaim]]:
    """As many as fit into one transaction, those together whose requests to enter may still arrive on the same lease."""
    by_lease: dict[ServerLease | None, list[EtcdClaim]] = {}
    for own in claims:
        by_lease.setdefault(own.may_arrive, []).append(own)
    for together in by_lease.values():
        yield from (together[at : at + REMOVED_TOGETHER] for at in range(0, len(together), REMOVED_TOGETHER))


def _was_there(own: EtcdClaim, removed: bool, repeated: bool) -> bool:
    # The first of several requests may have done it: gone by our own hand is no loss.
    return bool(removed or (repeated and own.create and not own.gone))
