"""The one owner of what is still to be removed: claims whose withdrawal got no answer, or that nobody is left to withdraw."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from ..errors import LocklineError
from ..runtime import Running, Runtime
from .backend import Backend
from .claim import Claim
from .lasting import end

log = logging.getLogger("lockline")

BATCH: Final = 500
"""Claims that leave in one go, at most: a step of a store is to stay short."""
A_TRY: Final = 1.0
"""How long the store has for each of them."""
A_WHILE: Final = 2.0
"""How long the background is at it in one go."""


@dataclass(slots=True)
class Debt:
    """A claim to be withdrawn, until its ttl is over."""

    claim: Claim
    until: float
    kept_until: float
    """Until then it is not removed: it is let last."""
    tries: int = 0


class Removals:
    """Withdraws what is owed, until that is confirmed or the claim's ttl is over."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._debts: dict[str, Debt] = {}
        self._settler: Running | None = None

    def __bool__(self) -> bool:
        return bool(self._debts)

    def owe(self, claim: Claim, kept_until: float = 0.0) -> None:
        """Take this claim over."""
        self._debts[claim.id] = Debt(claim, max(self._runtime.now() + claim.ttl, kept_until), kept_until)

    async def settle(self, backend: Backend, until: float) -> None:
        """Withdraw what is owed, first what was tried least; what fails stays owed until its ttl is over."""
        debts = sorted(self._debts.values(), key=lambda debt: debt.tries)
        fresh = [debt for debt in debts if not debt.tries]
        # Together while nothing speaks against it. What failed once goes by itself: one bad line keeps no other.
        batches = [fresh[at : at + BATCH] for at in range(0, len(fresh), BATCH)]
        batches += [[debt] for debt in debts if debt.tries]
        for batch in batches:
            now = self._runtime.now()
            if now >= until:
                return
            for debt in batch:
                debt.tries += 1
            due = [debt for debt in batch if now < debt.until]
            try:
                for debt in due:
                    if debt.kept_until > now:
                        await end(backend, debt.claim, debt.kept_until - now, min(until, now + A_TRY))
                if leaving := [debt.claim for debt in due if debt.kept_until <= now]:
                    await backend.leave_all(leaving, min(until, now + A_TRY))
            except LocklineError as problem:
                log.debug("withdrawing %d claims failed, will be tried again: %s", len(due), problem)
                if getattr(problem, "unsent", False):
                    return
                continue
            for debt in batch:
                self._debts.pop(debt.claim.id, None)

    def settle_aside(self, backend: Backend) -> None:
        """Begin with it in the background, unless that is under way."""
        if self._settler is not None and self._settler.alive():
            return

        async def for_a_while() -> None:
            await self.settle(backend, self._runtime.now() + A_WHILE)

        try:
            self._settler = self._runtime.spawn(for_a_while, "lockline-removals")
        except RuntimeError as problem:
            log.debug("what is owed has to wait: %s", problem)

    def under_way(self) -> Running | None:
        """Who is at it in the background."""
        return self._settler
