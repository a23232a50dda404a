"""LeaseRenewal: the leases are kept alive, and every claim is seen to stand, in as few transactions as that takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from ...core.claim import Claim, Gone, Unanswered
from ...errors import BackendUnavailable
from ...runtime import Runtime
from . import channel as ways
from . import commands
from .channel import NOT_FOUND, Channel
from .claims import EtcdClaim, EtcdClaims
from .connection import Refused
from .keys import Keys, value_of
from .leases import LeaseRenewal, Leases, ServerLease

BATCH: Final = 100
"""Claims per transaction; etcd takes 128 steps unless it is set up otherwise."""


class Renewals:
    """The renewals of one client."""

    def __init__(
        self,
        channel: Channel,
        leases: Leases,
        places: EtcdClaims,
        keys: Keys,
        client: str,
        runtime: Runtime,
        lose: Callable[[EtcdClaim], None],
        remove: Callable[[EtcdClaim, float], Awaitable[bool]],
    ) -> None:
        self._channel = channel
        self._leases = leases
        self._places = places
        self._client = client
        self._nothing = keys.nothing(client)
        self._runtime = runtime
        self._lose = lose
        self._remove = remove

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        """Give each claim its ttl again from now, never less than it has; None for each that lives on."""
        while True:
            sent = self._runtime.now()
            fates: dict[str, Gone | Unanswered | None] = {}
            living: list[tuple[Claim, EtcdClaim, ServerLease]] = []
            for claim in claims:
                place = self._places.get(claim.id)
                if place is None or place.gone or place.expires <= sent:
                    fates[claim.id] = Gone("expired" if place is not None and place.expires <= sent else None)
                    continue
                lease = place.lease
                if claim.ttl > lease.seconds:
                    # The server's lease has to last as long as the holder may trust it.
                    lease, _ = await self._leases.ready(claim.ttl, sent, until)
                living.append((claim, place, lease))
            if not living:
                return [fates[claim.id] for claim in claims]
            renewal = await self._leases.renew({lease for _, _, lease in living}, until)
            if await self._verify(living, fates, renewal, sent, until):
                return [fates[claim.id] for claim in claims]

    async def _verify(
        self,
        living: list[tuple[Claim, EtcdClaim, ServerLease]],
        fates: dict[str, Gone | Unanswered | None],
        renewal: LeaseRenewal,
        sent: float,
        until: float,
    ) -> bool:
        """See that every claim still stands, and that the renewal counts; False when all has to be asked again."""
        again = False
        for start in range(0, len(living), BATCH):
            batch = living[start : start + BATCH]
            try:
                answer = await self._seen_by_a_quorum(batch, until)
            except Refused as refused:
                if refused.code != NOT_FOUND:
                    raise
                return False
            except BackendUnavailable as problem:
                if not start:
                    raise
                # What was confirmed before counts: were all asked for anew each time, a long list might never get through.
                fates.update((claim.id, Unanswered(problem)) for claim, _, _ in living[start:])
                return True
            seen = [self._seen(*one, reply) for one, reply in zip(batch, answer.responses[:-1], strict=True)]
            if not renewal.confirm(answer.header.raft_term):
                return False
            for (claim, place, lease), (there, told) in zip(batch, seen, strict=True):
                if lease.dead or not there:
                    self._lose(place)
                    if not lease.dead:
                        await self._remove(place, until)  # what is left of it: the note of an eviction
                    fates[claim.id] = Gone()
                elif told:
                    place.expires = max(place.expires, sent + claim.ttl)
                    fates[claim.id] = None
                else:
                    again = True
        return not again

    async def _seen_by_a_quorum(self, batch: list[tuple[Claim, EtcdClaim, ServerLease]], until: float) -> Any:
        steps = [self._step(*one) for one in batch]
        request = commands.seen_by_a_quorum(steps, self._nothing)
        return await self._channel.ask(ways.TXN, request, "TxnResponse", until)

    def _seen(self, claim: Claim, place: EtcdClaim, lease: ServerLease, reply: Any) -> tuple[bool, bool]:
        """Whether the claim stands, and whether its key says by now what it should."""
        told = reply.response_txn if reply.WhichOneof("choice") == "response_txn" else None
        kvs = (reply if told is None else told.responses[-1]).response_range.kvs
        if not kvs or kvs[0].create_revision != place.create:
            return False, False
        if told is None:
            return True, True
        # If not, another request of ours came between: an extension at the same time, or the first try of this one.
        last = bool(told.succeeded) and kvs[0].mod_revision > place.changed
        place.changed = max(place.changed, kvs[0].mod_revision)
        if last:
            place.written, place.lease, place.claim = True, lease, _told(claim, place)
        return True, last

    def _step(self, claim: Claim, place: EtcdClaim, lease: ServerLease) -> Any:
        """A look at the claim's key; or its key put anew, when something in it has changed."""
        if place.written and lease is place.lease and claim.weight >= place.claim.weight:
            return commands.still_there(place.key)
        value = value_of(_told(claim, place), self._client, place.token)
        return commands.rewritten(place.key, place.changed, value, lease.id)


def _told(claim: Claim, place: EtcdClaim) -> Claim:
    """The claim as others shall see it: lighter and of another kind if it became so, and its ttl never less than before."""
    known = claim if claim.weight < place.claim.weight else place.claim
    return known._replace(ttl=max(claim.ttl, place.claim.ttl))
