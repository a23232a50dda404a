"""The mistakes of a client, and of what decides when a lease is valid."""

from __future__ import annotations

import itertools
import time
from typing import Any, ClassVar

from lockline.core import live as core_live
from lockline.core.claim import Claim, Gone, Grant, Waiting
from lockline.core.keeper import Keeper
from lockline.core.live import HOLDING, RENEWALS_PER_TTL, LiveClaim
from lockline.errors import BackendUnavailable, Reason

from .toy import ToyBackend


class ProcessCounter(ToyBackend):
    counter: ClassVar[Any] = itertools.count(1)

    def granted(self, claim: Claim, token: int) -> Grant:
        return Grant(next(self.counter))


class ClientClock(ToyBackend):
    def granted(self, claim: Claim, token: int) -> Grant:
        return Grant(time.time_ns() // 1000)


class RoundedToken(ToyBackend):
    def granted(self, claim: Claim, token: int) -> Grant:
        return Grant(int(float((1 << 60) + token)))


class HopefulRenewal(ToyBackend):
    async def renew_one(self, claim: Claim, until: float) -> Gone | None:
        try:
            return await super().renew_one(claim, min(until, self._runtime.now() + 0.3))
        except BackendUnavailable:
            return None


class HopefulAcquire(ToyBackend):
    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        try:
            return await super().enter(claim, wait=wait, until=min(until, self._runtime.now() + 0.3))
        except BackendUnavailable:
            return Grant(time.time_ns() // 1000)


class OneId(ToyBackend):
    """The same id for all that one client ever asks for on a name."""

    async def ask(self, until: float, *request: Any) -> Any:
        request = tuple(word._replace(id=self.me) if isinstance(word, Claim) else word for word in request)
        return await super().ask(until, *request)


class HeldByProcess(ToyBackend):
    """What this client has been granted last on a name it grants again, for as long as that has not been given back."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._held: dict[str, int] = {}

    def granted(self, claim: Claim, token: int) -> Grant:
        self._held[claim.name] = token
        return Grant(token)

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        if claim.name in self._held and claim.kind == "lock":
            return Grant(self._held[claim.name])
        return await super().enter(claim, wait=wait, until=until)

    async def leave(self, claim: Claim, until: float, *, heir: str = "") -> bool:
        self._held.pop(claim.name, None)
        await super().leave(claim, until, heir=heir)
        return True


def count_from_the_reply() -> None:
    def acknowledge(self: LiveClaim, sent: float, ttl: float) -> None:
        self.ends = max(self.ends, self.runtime.now() + ttl)
        self.due = sent + ttl / RENEWALS_PER_TTL

    LiveClaim.acknowledge = acknowledge  # type: ignore[method-assign]
    LiveClaim.count_from = acknowledge  # type: ignore[method-assign]


def trust_for_ever() -> None:
    def remaining(self: LiveClaim) -> float:
        return 1.0 if self.state is HOLDING else 0.0

    LiveClaim.remaining = remaining  # type: ignore[method-assign]
    # Nor does the keeper find that its time is over.
    LiveClaim.deadline = property(lambda self: float("inf"))  # type: ignore[method-assign, assignment]


def trust_twice_as_long() -> None:
    vars(core_live)["TRUSTED"] = 2.0


def revive() -> None:
    """A deadline that has passed is forgotten with the next renewal, and renewals go on after it."""

    def acknowledge(self: LiveClaim, sent: float, ttl: float) -> None:
        self.ends = max(self.ends, min(sent + ttl, self.limit))
        self.due = sent + ttl / RENEWALS_PER_TTL

    def remaining(self: LiveClaim) -> float:
        return max(0.0, self.ends - self.runtime.now()) if self.state is HOLDING else 0.0

    def end(self: Keeper, live: LiveClaim, reason: Reason) -> None:
        live.ends = self._runtime.now() + live.claim.ttl

    LiveClaim.acknowledge = acknowledge  # type: ignore[method-assign]
    LiveClaim.remaining = remaining  # type: ignore[method-assign]
    Keeper._end = end  # type: ignore[method-assign]
