"""A client's own claims on etcd: their renewal and their removal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ...core.batching import SizedBatches
from ...core.claim import Claim, Gone, Unanswered
from ...errors import BackendUnavailable
from ...runtime import Runtime
from ..keyed.claims import Fates, KeyedClaim, KeyedClaims
from . import commands
from . import messages as m
from .channel import NOT_FOUND, EtcdChannel, Way, is_too_large
from .commands import Keys
from .grpc import GrpcRefused
from .leases import EtcdLeases, LeaseRenewal, ServerLease

RENEWED_TOGETHER: Final = 100
REMOVED_TOGETHER: Final = 60
"""Claims per transaction; etcd takes 128 steps unless it is set up otherwise, and some that leave need two."""
BYTES_TOGETHER: Final = 512 * 1024
"""Of a transaction that renews; etcd takes three times as much unless it is set up otherwise."""
STEP_BYTES: Final = 100
"""Of a step, beside keys and values."""


class EtcdClaim(KeyedClaim[ServerLease]):
    """One claim of this client on etcd."""

    __slots__ = ("key", "revision", "sent", "token", "written")

    def __init__(self, claim: Claim, key: bytes) -> None:
        super().__init__(claim)
        self.key = key
        self.token = 0
        """0 until it is known to stand."""
        self.written: tuple[float, ...] | None = None
        """What the key says of its grant; None while it does not say the token either, for others to read."""
        self.sent: tuple[float, ...] = ()
        """The same of the last request that was to write it."""
        self.revision = 0
        """At which `ahead` was seen."""

    def stand(self, lease: ServerLease, create: int, token: int, expires: float, changed: int = 0) -> None:
        """It is there."""
        self.carrier, self.create, self.token, self.expires = lease, create, token, expires
        self.changed = changed or create


Renewed = tuple[Claim, EtcdClaim, ServerLease]
"""A claim to be renewed as it is now, what is known of it, and the lease that is to carry it."""


class EtcdClaims(KeyedClaims[EtcdClaim]):
    """The claims of one client on etcd."""

    removed_together = REMOVED_TOGETHER

    def __init__(
        self, channel: EtcdChannel, leases: EtcdLeases, keys: Keys, runtime: Runtime, tell: Callable[[str], None]
    ) -> None:
        super().__init__(runtime, "lockline-etcd-sweeper", tell)
        self._channel = channel
        self._leases = leases
        self._keys = keys

    def own(self, claim: Claim) -> EtcdClaim:
        return self.get(claim.id) or EtcdClaim(claim, self._keys.claim(claim))

    # -- renewal -----------------------------------------------------------------------------------

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        """Keep the leases alive and see that every claim stands, in as few transactions as that takes."""
        while True:
            sent = self._runtime.now()
            fates: Fates = {}
            living: list[Renewed] = []
            for claim in claims:
                own = self.renewable(claim, sent, fates)
                if own is None or own.carrier is None:
                    continue
                lease = own.carrier
                if claim.ttl > lease.seconds:
                    # The server's lease has to last as long as the holder may trust it.
                    lease, _ = await self._leases.ready(claim.ttl, sent, until)
                living.append((claim, own, lease))
            if living:
                renewal = await self._leases.renew({lease for _, _, lease in living}, until)
                if not await self._verify(living, fates, renewal, sent, until):
                    continue
            return [fates[claim.id] for claim in claims]

    async def set_apart(self, claim: Claim, own: EtcdClaim, sent: float, fates: Fates, until: float) -> bool:
        # That it was granted, a quorum has written down.
        alone = await self._leases.alone(claim.ttl, until)
        return await self._verify([(claim, own, alone)], fates, LeaseRenewal((), sent, None), sent, until)

    async def _verify(
        self, living: list[Renewed], fates: Fates, renewal: LeaseRenewal, sent: float, until: float
    ) -> bool:  # fmt: skip
        """See that every claim still stands, and that the renewal counts; False when all has to be asked again."""
        again = False
        batches = SizedBatches(living, self._step_bytes, most=RENEWED_TOGETHER, most_bytes=BYTES_TOGETHER)
        for batch in batches:
            try:
                answer = await self._ask_quorum(batch, until)
            except GrpcRefused as refused:
                if refused.code == NOT_FOUND:
                    return False
                if not is_too_large(refused):
                    raise
                if not batches.halve(batch):
                    fates[batch[0][0].id] = Unanswered(refused)
                continue
            except BackendUnavailable as problem:
                if batch[0] is living[0]:
                    raise
                # What was confirmed before counts: were all asked for anew each time, a long list might never get through.
                fates.update((claim.id, Unanswered(problem)) for claim, _, _ in [*batch, *batches.rest()])
                return True
            seen = [self._take_in_reply(*one, reply) for one, reply in zip(batch, answer.responses[:-1], strict=True)]
            if not renewal.confirm(answer.header.raft_term):
                return False
            for (claim, own, lease), (there, told) in zip(batch, seen, strict=True):
                if lease.dead or not there:
                    self.lose(own)
                    if not lease.dead:
                        await self.remove([own], until)  # what is left of it: the note of an eviction
                    fates[claim.id] = Gone()
                elif told:
                    own.expires = max(own.expires, sent + claim.ttl)
                    fates[claim.id] = None
                else:
                    again = True
        return not again

    def _step_bytes(self, renewed: Renewed) -> int:
        """What `_step` takes in a request, at most."""
        claim, own, lease = renewed
        if self._is_told(claim, own, own.carried_by(lease)):
            return len(own.key) + STEP_BYTES
        # Text in JSON in JSON.
        return 4 * len(own.key) + 12 * len(claim.owner) + 2 * len(claim.meta) + 3 * STEP_BYTES

    async def _ask_quorum(self, batch: list[Renewed], until: float) -> Any:
        steps = [self._step(*one) for one in batch]
        return (await self._channel.transact(commands.seen_by_a_quorum(steps, self._keys.nothing), until)).answer

    def _step(self, claim: Claim, own: EtcdClaim, lease: ServerLease) -> Any:
        """A look at the claim's key; or its key put anew, when something in it has changed."""
        since = own.changed  # before the rest: what another request of ours tells meanwhile lets this one fail
        lease = own.carried_by(lease)
        if self._is_told(claim, own, lease):
            return commands.still_there(own.key)
        own.sent = own.granted
        value = self._keys.value_of(own.as_told(claim), own.token, *own.sent)
        return commands.rewritten(own.key, since, value, lease.id)

    @staticmethod
    def _is_told(claim: Claim, own: EtcdClaim, lease: ServerLease) -> bool:
        """Whether the claim's key says what it should: then it is only looked for."""
        return own.written == own.granted and lease is own.carrier and claim.weight >= own.claim.weight

    def _take_in_reply(self, claim: Claim, own: EtcdClaim, lease: ServerLease, reply: Any) -> tuple[bool, bool]:
        """Whether the claim stands, and whether its key says by now what it should."""
        told = reply.response_txn if reply.WhichOneof("choice") == "response_txn" else None
        kvs = (reply if told is None else told.responses[-1]).response_range.kvs
        # On no lease it holds nothing in the eyes of others: somebody has overwritten it, and the next one may be at work.
        if not kvs or kvs[0].create_revision != own.create or not kvs[0].lease:
            return False, False
        if told is None:
            return True, True
        # If not, another request of ours came between: an extension at the same time, or the first try of this one.
        last = bool(told.succeeded) and kvs[0].mod_revision > own.changed
        if last:
            own.written, own.carrier, own.claim = own.sent, own.carried_by(lease), own.as_told(claim)
        own.changed = max(own.changed, kvs[0].mod_revision)
        return True, last

    # -- removal -----------------------------------------------------------------------------------

    async def leave(self, claims: Sequence[Claim], way: Way, until: float) -> list[bool]:
        """Remove these for good and no other with them, in few transactions; whether each was still there."""
        return await self.withdraw(claims, lambda batch: self._remove(batch, way, until))

    async def remove(self, batch: Sequence[EtcdClaim], until: float) -> dict[str, bool]:
        return await self._remove(batch, self._channel, until)

    async def _remove(self, batch: Sequence[EtcdClaim], way: Way, until: float) -> dict[str, bool]:
        """Remove these, all of them on the same `may_arrive`."""
        lease = batch[0].may_arrive
        try:
            if lease is not None:
                return await self._withdraw(lease, batch, way, until)
            return await self._delete(batch, way, until)
        except GrpcRefused as refused:
            if lease is not None and refused.code == NOT_FOUND:
                self._leases.lose(lease)
                return await self._remove(batch, way, until)
            half = len(batch) // 2
            if not half or not is_too_large(refused):
                raise
            first = await self._remove(batch[:half], way, until)
            return {**first, **await self._remove(batch[half:], way, until)}

    async def _withdraw(
        self, lease: ServerLease, batch: Sequence[EtcdClaim], way: Way, until: float
    ) -> dict[str, bool]:
        """Remove these claims, and keep their requests to enter from being applied after this."""
        keys = [(own.key, self._keys.note(own.claim.id)) for own in batch]
        answer, repeated = await way.transact(commands.withdraw(keys, self._keys.session(lease.id), lease.id), until)
        lease.was_put(answer.header.revision)
        for own in batch:
            own.late = None
        return {
            own.claim.id: own.was_there(reply.response_delete_range.deleted > 0, repeated)
            for own, reply in zip(batch, answer.responses[1::2], strict=True)
        }

    async def _delete(self, batch: Sequence[EtcdClaim], way: Way, until: float) -> dict[str, bool]:
        steps = [commands.leave(own.key, own.create, self._keys.note(own.claim.id)) for own in batch]
        if len(steps) == 1:
            answer, repeated = await way.transact(steps[0], until)
            answers = [answer]
        else:
            together = m.TxnRequest(success=[m.RequestOp(request_txn=step) for step in steps])
            answer, repeated = await way.transact(together, until)
            answers = [reply.response_txn for reply in answer.responses]
        return {
            own.claim.id: own.was_there(one.succeeded and one.responses[0].response_delete_range.deleted > 0, repeated)
            for own, one in zip(batch, answers, strict=True)
        }
