"""The openings of a backend whose claims are keys: how a claim comes in, and how what is heard of it is passed on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from ...core.claim import Claim, Gone, Grant, Record, Unanswered, Waiting
from ...core.lasting import renew_for
from ...core.waiting import Hints
from ...errors import BackendUnavailable
from ...guarantees import Guarantees
from ...runtime import Runtime
from .claims import KeyedClaim, KeyedClaims

K = TypeVar("K", bound=KeyedClaims[Any])


class KeyedKeeping(Protocol):
    """What one client keeps at the store."""

    async def look(self, name: str, what: str, until: float, *, holds: bool) -> Record: ...
    async def keep(self, own: Any, what: str, value: bytes, ttl: float, until: float) -> bool: ...
    async def tell_time(self, span: float, until: float) -> None: ...


class KeyedBackend(ABC, Generic[K]):
    """What is the same on each such store."""

    _claims: K
    _hints: Hints
    _keeping: KeyedKeeping

    def __init__(self, url: str, runtime: Runtime) -> None:
        self.url = url
        self._runtime = runtime

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        """Put the claim at the end of its line; with `wait` false, only if it would hold at once (else None)."""
        try:
            return await self._enter(claim, wait, until)
        except BackendUnavailable as problem:
            # A question that was put after the claim may itself not have gone out: that does not count.
            problem.unsent = self._claims.get(claim.id) is None
            raise

    @abstractmethod
    async def _enter(self, claim: Claim, wait: bool, until: float) -> Grant | Waiting | None:
        """The same; whoever may have sent something has noted the claim before."""

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        """Where the claim stands now; those in its way are watched until it is looked at again."""
        answer = await self._place(claim, until)
        if isinstance(answer, Grant):
            self._claims.granted(claim.id)
        return answer

    @abstractmethod
    async def _place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        """The same."""

    def _not_applied(self, own: KeyedClaim[Any]) -> None:
        """It was refused, or it never went out: nothing of it can come to be."""
        own.late = None
        if not own.create:
            self._claims.drop(own.claim.id)

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        """Give each claim its ttl again from now, never less than it has; None for each that lives on."""
        return await self._claims.renew(claims, until)

    async def last(self, claim: Claim, ttl: float, until: float) -> bool:
        """Let the claim go on for that long, whoever dies, and then end by itself; whether it was still there."""
        # What others see comes first: the rest takes more than one request, and the time that it had may be short.
        there = await renew_for(self.renew, claim, ttl, until)
        return there and await self._claims.last(claim._replace(ttl=ttl), until)

    async def kept(self, name: str, what: str, until: float, token: int = 0, ttl: float = 0.0) -> Record:
        """What is kept beside the line. Nobody with a lower token writes, because no claim that has one stands any more."""
        return await self._keeping.look(name, what, until, holds=token > 0)

    async def keep(self, name: str, what: str, value: bytes, token: int, ttl: float, until: float) -> bool:
        """Keep this value for that long, in one step with a look whether the claim with this token stands; False if it does not."""
        own = next((own for own in self._claims.standing() if own.claim.name == name and own.token == token), None)
        return own is not None and await self._keeping.keep(own, what, value, ttl, until)

    async def tell_time(self, span: float, until: float) -> None:
        """Find out what time it is there, exactly enough to measure such a span."""
        await self._keeping.tell_time(span, until)

    def report_to(self, hints: Hints) -> None:
        """Where to pass on what is pushed."""
        self._hints = hints

    def _heard(self, claim_id: str) -> None:
        """What was seen of the line no longer stands."""
        own = self._claims.get(claim_id)
        if own is not None:
            own.ahead = None
        self._hints.heard(claim_id)


def by_consensus(tolerates: str) -> Guarantees:
    """What every such store promises; `tolerates` is what it says of its own servers."""
    return Guarantees(
        exclusion="consensus",
        fifo=True,
        push=True,
        token_survives=frozenset({"release", "expiry", "restart", "failover"}),
        tolerates=tolerates,
    )
