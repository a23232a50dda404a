"""What a client knows of its own claims, where each is a key on a lease of the store that may last longer than the claim."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from ...core.claim import Claim, Gone, Unanswered
from ...core.worker import Worker
from ...errors import LocklineError
from ...runtime import Runtime
from .carriers import C

log = logging.getLogger("lockline")

Fates = dict[str, Gone | Unanswered | None]
"""What became of claims that were to be renewed, by their ids."""
A_TRY: Final = 2.0
"""How long the background tries one thing before it looks at the next."""
AGAIN: Final = 0.5
"""How long it waits after a try that failed."""
NEVER: Final = float("inf")


class KeyedClaim(Generic[C]):
    """One claim of this client, from before the request that puts it into its line until it is known to be gone."""

    __slots__ = ("ahead", "carrier", "changed", "claim", "create", "expires", "gone", "granted", "late", "trusts")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.late: C | None = None
        """What an `enter` hangs on that may still be on its way: no answer came, or it went out more than once."""
        self.carrier: C | None = None
        self.create = 0
        """Its place; 0 until it is known to stand."""
        self.expires = NEVER
        """When its ttl is over if it is not renewed. The store's lease may last longer, for others or by its rounding."""
        self.changed = 0
        """When its key was last put, as far as this client knows."""
        self.gone = False
        self.granted: tuple[float, ...] = ()
        """When it began to hold, by this client's wall clock, if it waited before; its next renewal tells others."""
        self.ahead: list[Any] | None = None
        """Who kept it from holding when that was last looked up; None when that has to be done."""
        self.trusts = 0.0
        """Until when it believes that, if nobody says otherwise."""

    @property
    def may_arrive(self) -> C | None:
        """What a request to enter hangs on that could still be applied."""
        return self.late if self.late is not None and not self.late.dead else None

    def as_told(self, claim: Claim) -> Claim:
        """As others shall see it: lighter and of another kind if it became so, and its ttl never less than before."""
        known = claim if claim.weight < self.claim.weight else self.claim
        return known._replace(ttl=max(claim.ttl, self.claim.ttl))

    def carried_by(self, carrier: C) -> C:
        """What carries it once it is renewed on this: a claim that outlives its client stays on what it has alone, also if a renewal comes late."""
        mine = self.carrier
        return mine if mine is not None and mine.alone and not carrier.alone else carrier

    def was_there(self, removed: bool, repeated: bool) -> bool:
        """Whether a request that removed it, or not, was its end."""
        # The first of several requests may have done it: gone by our own hand is no loss.
        return removed or (repeated and self.create > 0 and not self.gone)


O = TypeVar("O", bound=KeyedClaim[Any])  # noqa: E741 - one's own


class KeyedClaims(ABC, Generic[O]):
    """The claims of one client, and a sweeper that removes those whose ttl is over while the store's lease goes on."""

    removed_together: ClassVar[int]
    """Claims per transaction."""

    def __init__(self, runtime: Runtime, name: str, tell: Callable[[str], None]) -> None:
        self._runtime = runtime
        self.tell = tell
        self._claims: dict[str, O] = {}
        self._worker = Worker(runtime, name, self._look_round, self.idle)

    @abstractmethod
    def own(self, claim: Claim) -> O:
        """What is known of this claim, or a new page for it."""

    @abstractmethod
    async def remove(self, batch: Sequence[O], until: float) -> Mapping[str, bool]:
        """Remove these from the store for good, all of them on the same `may_arrive`; whether each was there."""

    @abstractmethod
    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        """Give each claim its ttl again from now; None for each that lives on."""

    @abstractmethod
    async def set_apart(self, claim: Claim, own: O, sent: float, fates: Fates, until: float) -> bool:
        """Hang the claim on a lease of its own that lasts for its ttl, and note its fate; False when all has to be asked again."""

    def idle(self) -> bool:
        return not self.standing()

    def get(self, claim_id: str) -> O | None:
        return self._claims.get(claim_id)

    def standing(self) -> list[O]:
        """Those of which more is known than that a request went out."""
        return [own for own in list(self._claims.values()) if own.expires != NEVER]

    def granted(self, claim_id: str) -> None:
        """A claim that waited holds, as its client finds out now."""
        own = self.get(claim_id)
        if own is not None and not own.granted:
            own.granted = (self._runtime.wall(),)

    def note(self, own: O) -> None:
        """A request to enter goes out for this one."""
        self._claims[own.claim.id] = own

    def keep(self, own: O) -> None:
        """See to its end, too."""
        self._claims[own.claim.id] = own
        self._worker.by(own.expires)

    def drop(self, claim_id: str) -> None:
        """Nothing of this claim is at the store, and nothing is on its way."""
        self._claims.pop(claim_id, None)

    def lose(self, own: O) -> None:
        """It is no more, and not by our own hand."""
        own.gone = True
        self.drop(own.claim.id)
        self.tell(own.claim.id)

    def lose_all(self, carrier: object) -> None:
        """The store has ended this lease, and so every claim on it."""
        for own in self.standing():
            if own.carrier is carrier:
                self.lose(own)

    def renewable(self, claim: Claim, sent: float, fates: Fates) -> O | None:
        """What is known of a claim that may be renewed; where there is nothing, its fate is noted."""
        own = self.get(claim.id)
        if own is not None and own.carrier is not None and own.expires > sent:
            return own
        fates[claim.id] = Gone("expired" if own is not None and own.expires <= sent else None)
        return None

    async def last(self, claim: Claim, until: float) -> bool:
        """Let the claim end by its ttl alone, on a lease that is not kept alive or given back; whether it was there.

        As long as its client lives, that sees to the end of it.
        """
        while True:
            sent = self._runtime.now()
            fates: Fates = {}
            own = self.renewable(claim, sent, fates)
            if own is None:
                return False
            if await self.set_apart(claim, own, sent, fates, until):
                self._worker.by(own.expires)
                return fates[claim.id] is None

    async def withdraw(
        self, claims: Sequence[Claim], remove: Callable[[Sequence[O]], Awaitable[Mapping[str, bool]]]
    ) -> list[bool]:
        """Remove these for good and no other with them, in few transactions; whether each was still there.

        Where some got no answer it raises, and may be asked again.
        """
        taken = [self.own(claim) for claim in claims]
        there: dict[str, bool] = {}
        try:
            for own in taken:
                self._claims.pop(own.claim.id, None)
            for batch in self._batches(taken):
                there.update(await remove(batch))
        except BaseException:
            # What they hang on may be kept alive for other claims, so time alone does not remove them.
            now = self._runtime.now()
            for own in taken:
                if own.claim.id not in there and (own.carrier is not None or own.late is not None):
                    own.expires = min(own.expires, now)
                    self.keep(own)
            raise
        now = self._runtime.now()
        return [there[own.claim.id] and (not own.create or own.expires > now) for own in taken]

    def _batches(self, claims: Sequence[O]) -> Iterator[list[O]]:
        """As many as fit into one transaction, those together whose requests to enter may still arrive on the same lease."""
        by_carrier: dict[object, list[O]] = {}
        for own in claims:
            by_carrier.setdefault(own.may_arrive, []).append(own)
        for together in by_carrier.values():
            for at in range(0, len(together), self.removed_together):
                yield together[at : at + self.removed_together]

    # -- the sweeper -------------------------------------------------------------------------------

    async def _look_round(self) -> float:
        return await self.sweep()

    async def sweep(self) -> float:
        """Remove the claims whose ttl is over, though the store's lease lasts longer; when the next one's is."""
        now = self._runtime.now()
        swept = [await self._expire(own) for own in self.standing() if own.expires <= now]
        return min((own.expires for own in self.standing()), default=NEVER) if all(swept) else now + AGAIN

    async def _expire(self, own: O) -> bool:
        try:
            await self.remove([own], self._runtime.now() + A_TRY)
        except LocklineError as problem:
            # The store's lease is the net below.
            log.debug("removing the claim on %r whose ttl is over failed: %s", own.claim.name, problem)
            return False
        self.lose(own)
        return True

    async def stop(self, until: float) -> None:
        """End what runs in the background."""
        await self._worker.stop(until)
