"""The end of claims: each removed for good and no other with it, alone or many in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from ...core.claim import Claim
from ...runtime import Runtime
from . import channel as ways
from . import commands
from . import messages as m
from .channel import NOT_FOUND, Channel, Way
from .claims import EtcdClaim, EtcdClaims
from .connection import Refused
from .keys import Keys
from .leases import NO_LEASE, Leases, ServerLease

BATCH: Final = 60
"""Claims per transaction; etcd takes 128 steps unless it is set up otherwise, and some claims need two."""


class Removals:
    """The removals of one client."""

    def __init__(
        self, channel: Channel, leases: Leases, places: EtcdClaims, keys: Keys, client: str, runtime: Runtime,
        doubts: dict[str, ServerLease],
    ) -> None:  # fmt: skip
        self._channel = channel
        self._leases = leases
        self._places = places
        self._keys = keys
        self._client = client
        self._runtime = runtime
        self._doubts = doubts

    # -- one ---------------------------------------------------------------------------------------

    async def leave(self, claim: Claim, until: float) -> bool:
        """Remove this claim and no other; whether it was still there."""
        place = self._take(claim)
        try:
            there = await self.remove(place, until)
        except BaseException:
            self._leave_to_the_sweeper([place])
            raise
        return self._ended(place, there)

    async def remove(self, place: EtcdClaim, until: float) -> bool:
        """Remove this claim from the server, for good; whether it was there."""
        if place.repeated and not place.entry.dead:
            # A request to enter may still be on its way.
            answer = await self._withdraw(place.entry, [place], self._channel, until)
            if answer is not None:
                return answer[0]
        repeats: list[None] = []
        request = commands.leave(place.key, place.create, self._note(place))
        answer = await self._channel.ask(ways.TXN, request, "TxnResponse", until, repeated=lambda: repeats.append(None))
        return _was_there(place, answer, bool(repeats))

    # -- many --------------------------------------------------------------------------------------

    async def leave_all(self, claims: Sequence[Claim], until: float) -> list[bool]:
        """As `leave`, for many, in few transactions; where some got no answer it raises, and may be asked again."""
        places = [self._take(claim) for claim in claims]
        fates: dict[str, bool] = {}
        way = self._channel.brief
        try:
            doubtful: dict[ServerLease, list[EtcdClaim]] = {}
            for place in places:
                if place.repeated and not place.entry.dead:
                    doubtful.setdefault(place.entry, []).append(place)
            for lease, of_it in doubtful.items():
                for batch in _batches(of_it):
                    there = await self._withdraw(lease, batch, way, until)
                    if there is not None:
                        fates.update(zip((place.claim.id for place in batch), there, strict=True))
            for batch in _batches([place for place in places if place.claim.id not in fates]):
                fates.update(await self._remove_all(batch, way, until))
        except BaseException:
            self._leave_to_the_sweeper(place for place in places if place.claim.id not in fates)
            raise
        return [self._ended(place, fates[place.claim.id]) for place in places]

    async def _remove_all(self, batch: list[EtcdClaim], way: Way, until: float) -> dict[str, bool]:
        repeats: list[None] = []
        steps = [m.RequestOp(request_txn=commands.leave(place.key, place.create, self._note(place))) for place in batch]
        request = m.TxnRequest(success=steps)
        answer = await way.ask(ways.TXN, request, "TxnResponse", until, repeated=lambda: repeats.append(None))
        return {
            place.claim.id: _was_there(place, reply.response_txn, bool(repeats))
            for place, reply in zip(batch, answer.responses, strict=True)
        }

    # -- for both ----------------------------------------------------------------------------------

    async def _withdraw(self, lease: ServerLease, places: list[EtcdClaim], way: Way, until: float) -> list[bool] | None:
        """Remove these claims, and keep their requests from being applied after this; None if their lease is no more."""
        repeats: list[None] = []
        session = self._keys.session(self._client, lease.id)
        request = commands.withdraw([(place.key, self._note(place)) for place in places], session, lease.id)
        try:
            answer = await way.ask(ways.TXN, request, "TxnResponse", until, repeated=lambda: repeats.append(None))
        except Refused as refused:
            if refused.code != NOT_FOUND:
                raise
            self._leases.bury(lease)
            return None
        lease.generation = max(lease.generation, answer.header.revision)
        lease.present = True
        return [
            bool(reply.response_delete_range.deleted > 0 or (repeats and place.create and not place.gone))
            for place, reply in zip(places, answer.responses[1::2], strict=True)
        ]

    def _note(self, place: EtcdClaim) -> bytes:
        return self._keys.evicted(self._client, place.claim.id)

    def _take(self, claim: Claim) -> EtcdClaim:
        """What is known of this claim; from now on it is no longer kept."""
        place, lease = self._places.drop(claim.id), self._doubts.get(claim.id)
        if place is None:
            place = EtcdClaim(claim, self._keys.claim(claim), 0, 0, lease or NO_LEASE, self._runtime.now())
            place.repeated = lease is not None
        return place

    def _leave_to_the_sweeper(self, places: Iterable[EtcdClaim]) -> None:
        """Their leases may be kept alive for other claims, so time alone does not remove them."""
        now = self._runtime.now()
        for place in places:
            if place.lease is not NO_LEASE:
                place.expires = min(place.expires, now)
                self._places.add(place)

    def _ended(self, place: EtcdClaim, there: bool) -> bool:
        self._doubts.pop(place.claim.id, None)
        return there and (not place.create or place.expires > self._runtime.now())


def _batches(places: list[EtcdClaim]) -> Iterable[list[EtcdClaim]]:
    return (places[start : start + BATCH] for start in range(0, len(places), BATCH))


def _was_there(place: EtcdClaim, answer: Any, repeated: bool) -> bool:
    removed = answer.succeeded and answer.responses[0].response_delete_range.deleted > 0
    # The first of several requests may have done it: gone by our own hand is no loss.
    return bool(removed or (repeated and place.create and not place.gone))
