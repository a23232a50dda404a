"""The one background renewer of a client: keeps every claim alive, waiting or holding, in batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import LocklineError, Reason
from ..runtime import Runtime, Signal, Worker
from ..runtime.section import Inside
from .backend import Backend, Calling
from .claim import Claim, Unanswered
from .live import RENEWALS_PER_TTL, Handle, LiveClaim
from .waiting import Hints

log = logging.getLogger("lockline")

TICK = 0.5
"""The longest sleep of the worker: how long a push about a held claim (an eviction) may lie unread while nobody waits."""
LINGER = 5.0
"""How long the worker stays after its last claim, so that a busy client does not start one per acquire."""
SOON = 1 / 12
"""Claims that are due within this share of their ttl travel along with one that is due now."""
BATCH = 500
"""Claims that leave in one go, at most: a step of a store is to stay short."""
A_MOMENT = 0.1
"""How long the end of a client waits for each request that is still under way."""
AT_ONCE = 4
"""Renewals under way at the same time, at most: one that gets no answer does not keep the others from theirs."""


@dataclass(slots=True)
class Debt:
    """A claim to be withdrawn, until its ttl is over."""

    claim: Claim
    until: float
    tries: int = 0


class Renewal(NamedTuple):
    """A renewal that was begun: who does it, and the claims that it has not done with yet."""

    worker: Worker
    asked: set[str]


class Keeper:
    """Renews what is due, notes what is lost, and withdraws what could not be withdrawn at once.

    Its one loop never waits for the store, so a holder is told in time of its loss whatever the store does: what asks the
    store runs beside it.
    """

    def __init__(self, backend: Backend, runtime: Runtime, forget: Callable[[LiveClaim], None]) -> None:
        self._backend = backend
        self._runtime = runtime
        self._forget = forget
        self.hints = Hints(runtime, backend.reader, self.ring)
        """Where pushes arrive: one about a claim that is held (an eviction) is followed at once, not at the next tick."""
        backend.report_to(self.hints)
        self.reset()

    def ring(self) -> None:
        """Have the worker look round now, if there is one; safe from anywhere."""
        self._signal.set()

    def reset(self) -> None:
        """As new; in a forked child the parent's worker, locks and claims do not exist."""
        self.hints.forked()
        self._kept: dict[str, LiveClaim] = {}
        self._debts: dict[str, Debt] = {}
        self.books: dict[str, LiveClaim] = {}
        """Every claim that may stand in the store: from before its first request until its end was confirmed or is owed."""
        self._worker: Worker | None = None
        self._settler: Worker | None = None
        self._renewals: list[Renewal] = []
        self._talked_of: set[str] = set()
        """Those of them that a push spoke of meanwhile."""
        self._alone = self._runtime.section()
        self._seat: object = None
        """What the worker has to sit on: one that finds another there ends."""
        # Where another process can speak to this one, its word about what is held wakes the keeper as well.
        talks = isinstance(self._backend, Calling)
        self._signal: Signal = self._backend.signal() if talks else self._runtime.signal()  # type: ignore[attr-defined]
        self._planned = float("inf")
        self._closed = False
        self._abandoned = False

    def note(self, live: LiveClaim) -> None:
        """Withdraw this claim as soon as nobody answers for it, until it is struck out."""
        self.books[live.claim.id] = live
        if self._planned == float("inf"):
            self._wake()

    def strike(self, claim: Claim) -> None:
        """Nothing of this claim is left in the store, or it is owed."""
        self.books.pop(claim.id, None)
        self.hints.forget(claim.id)

    def add(self, live: LiveClaim) -> None:
        """Keep this claim alive from now on."""
        self._kept[live.claim.id] = live
        if live.due < self._planned or live.deadline < self._planned:
            self._wake()

    def drop(self, live: LiveClaim) -> None:
        """Leave this claim alone from now on."""
        self._kept.pop(live.claim.id, None)

    def owe(self, claim: Claim) -> None:
        """Withdraw this claim in the background, until it is confirmed or its ttl is over."""
        self._debts[claim.id] = Debt(claim, self._runtime.now() + claim.ttl)
        self.strike(claim)
        try:
            self._wake()
        except RuntimeError as problem:
            # Whoever owes has an error of its own to tell; the next one who wakes the worker starts it.
            log.error("a claim on %r is left to its ttl for now: %s", claim.name, problem)

    def others_under_way(self, me: object) -> bool:
        """Whether a call that is not this thread's or task's own is at a claim that it will strike out."""
        return any(live.under_way() and live.key[0] is not me for live in list(self.books.values()))

    def kept(self) -> list[LiveClaim]:
        """Every claim that is being kept."""
        return list(self._kept.values())

    def _wake(self) -> None:
        try:
            self._alone(self._wake_worker)
        except Inside:
            # A signal handler or finaliser in the middle of just that: at the latest the next tick sees what it brought.
            self._signal.set()

    def _wake_worker(self) -> None:
        if self._closed:
            return
        if self._worker is None or not self._worker.alive():
            # First: of two that were started because the start of one was cut short, the later one stays.
            self._seat = seat = object()
            self._worker = self._runtime.spawn(lambda: self._work(seat), "lockline-keeper", lasting=True)
        else:
            self._signal.set()

    async def stop(self, until: float) -> None:
        """End the worker."""
        self._closed = True
        worker = self._worker
        self._signal.set()
        if worker is not None:
            await worker.join(until)
        # What asks the store may be at it for longer than anybody wants to wait, and does no harm.
        for one in (self._settler, *(renewal.worker for renewal in self._renewals)):
            if one is not None:
                await one.join(min(until, self._runtime.now() + A_MOMENT))

    def abandon(self) -> None:
        """Nobody is left who could bring new claims: the worker need not wait for any."""
        self._abandoned = True
        self._signal.set()

    async def settle(self, until: float) -> None:
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
                if due:
                    await self._backend.leave_all([debt.claim for debt in due], min(until, now + 1.0))
            except LocklineError as problem:
                log.debug("withdrawing %d claims failed, will be tried again: %s", len(due), problem)
                if getattr(problem, "unsent", False):
                    return
                continue
            for debt in batch:
                self._debts.pop(debt.claim.id, None)

    async def _work(self, seat: object) -> None:
        idle_since = None
        while not self._closed and self._seat is seat:
            # Set before we look round and never moved past the tick that begins here: a claim that is added
            # meanwhile and due later needs to wake nobody.
            self._signal.clear()
            self._planned = self._runtime.now() + TICK
            try:
                plan = await self._round()
            except Exception:
                log.exception("the keeper met an unexpected error and goes on")
                plan = self._runtime.now() + 0.05
            now = self._runtime.now()
            if self.books or self._debts:
                idle_since = None
            elif idle_since is None:
                idle_since = now
            elif now >= idle_since + (0.0 if self._abandoned else LINGER) and self._alone(self._retire):
                return
            self._planned = min(plan, self._planned)
            await self._signal.wait(self._planned)

    def _retire(self) -> bool:
        # First, so that a claim added after the look below finds no plan that it could rely on.
        self._planned = float("inf")
        if self.books or self._debts or self._signal.is_set():
            return False
        self._worker = None
        return True

    async def _round(self) -> float:
        """Look at every claim once, have done what is due; when to look again."""
        now = self._runtime.now()
        plan = now + TICK
        self._take_over_orphans()
        if self._kept:
            await self._backend.attend()
        self._talked_of.update(self.hints.take())
        ripe: list[LiveClaim] = []
        soon: list[LiveClaim] = []
        # By those who are at it, so that none that was never begun, or was cut short, keeps its claims from the next.
        self._renewals = [renewal for renewal in self._renewals if renewal.worker.alive()]
        asked = {claim_id for renewal in self._renewals for claim_id in renewal.asked}
        for live in list(self._kept.values()):
            if now >= live.deadline:
                self._end(live, "expired")
                continue
            if live.token is not None:
                plan = min(plan, live.deadline)
            if live.claim.id in asked:
                continue
            talked_of = live.claim.id in self._talked_of
            if not self._wanted(live):
                if talked_of:
                    live.ask_at = now
                if live.ask_at <= now:
                    ripe.append(live)
                else:
                    plan = min(plan, live.ask_at)
                continue
            if live.due <= now or talked_of:
                ripe.append(live)
            elif live.due <= now + live.claim.ttl * SOON:
                soon.append(live)
            else:
                plan = min(plan, live.due)
        # What was said before an answer that is still under way has to be asked for again.
        self._talked_of.intersection_update(asked)
        if ripe:
            await self._begin_renewal(ripe + soon)
        elif soon:
            plan = min(plan, *(live.due for live in soon))
        if self._debts:
            plan = min(plan, now + 0.5)
            if self._settler is None or not self._settler.alive():
                try:
                    self._settler = self._runtime.spawn(self._settle_for_a_while, "lockline-keeper-debts")
                except RuntimeError as problem:
                    log.debug("what is owed has to wait: %s", problem)
        return plan

    def _take_over_orphans(self) -> None:
        """Owe every claim whose call is over and that is in nobody's hands: an exception struck between two instructions."""
        for live in list(self.books.values()):
            if live.answered_for() or live.claim.id not in self.books:
                continue
            live.released = live.lost is None
            self._debts[live.claim.id] = Debt(live.claim, self._runtime.now() + live.claim.ttl)
            self.drop(live)
            self.strike(live.claim)
            self._forget(live)

    async def _settle_for_a_while(self) -> None:
        await self.settle(self._runtime.now() + 2.0)

    async def _begin_renewal(self, batch: list[LiveClaim]) -> None:
        if len(self._renewals) >= AT_ONCE:
            # The next one that ends wakes us.
            return
        asked = {live.claim.id for live in batch}

        async def renewal() -> None:
            try:
                await self._renew(batch)
            finally:
                asked.clear()
                self._signal.set()

        try:
            worker = self._runtime.spawn(renewal, "lockline-keeper-renewal")
        except RuntimeError as problem:
            # No thread to be had: to watch deadlines late is better than to let leases go.
            log.warning("renewing %d claims in the keeper's own thread: %s", len(batch), problem)
            await self._renew(batch)
            return
        self._renewals.append(Renewal(worker, asked))

    def _wanted(self, live: LiveClaim) -> bool:
        if live.token is None:
            return True
        if not live.renews or live.abandoned:
            return False
        if live.me is not None and self._runtime.ended(live.me):
            outcome = self._runtime.outcome(live.me)
            if not (isinstance(outcome, Handle) and outcome._live is live):
                return False
            # A task whose result is the lease has handed it to whoever awaits it.
            live.me = None
        return True

    async def _renew(self, batch: list[LiveClaim]) -> None:
        sent = self._runtime.now()
        # One that gets no answer is given up when the next would be due, so that there is time for another.
        until = max(sent + 0.05, min(min(live.deadline, sent + live.claim.ttl / RENEWALS_PER_TTL) for live in batch))
        # Renewed for what it has left, a claim lives no longer than it would anyway: that only asks whether it is there.
        claims = [
            live.claim if self._wanted(live) else live.claim._replace(ttl=max(live.ends - sent, 0.001))
            for live in batch
        ]
        try:
            fates = await self._backend.renew(claims, until)
        except Exception as problem:
            # No answer is not loss: each claim lives until its own deadline, and we ask again before that.
            level = logging.DEBUG if isinstance(problem, LocklineError) else logging.ERROR
            log.log(level, "renewing %d claims failed: %s", len(batch), problem)
            now = self._runtime.now()
            for live in batch:
                live.put_off(now + min(live.claim.ttl / 10, 1.0), problem)
            return
        for live, claim, fate in zip(batch, claims, fates, strict=True):
            if self._kept.get(claim.id) is not live:
                continue
            if fate is None:
                live.acknowledge(sent, claim.ttl)
                live.ask_at = float("inf")
            elif isinstance(fate, Unanswered):
                live.put_off(self._runtime.now() + min(live.claim.ttl / 10, 1.0), fate.problem)
            else:
                expired = self._runtime.now() >= live.deadline
                self._end(live, fate.reason or ("expired" if expired else "evicted"))

    def _end(self, live: LiveClaim, reason: Reason) -> None:
        self._kept.pop(live.claim.id, None)
        live.note_loss(reason)
        if live.listened_to:
            self._runtime.call_aside(live.tell)
        self._forget(live)
        if reason == "expired" and live.token is not None:
            # We trust it no longer (garbage, max_hold, the margin for drift), the store may still: let the next in.
            self._debts[live.claim.id] = Debt(live.claim, self._runtime.now() + live.claim.ttl)
        if live.token is not None:
            self.strike(live.claim)
        else:
            self.hints.heard(live.claim.id)
