"""The one background renewer of a client: keeps every claim alive, waiting or holding, in batches."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import LocklineError, Reason
from ..runtime import Runtime
from .agenda import AT_A_TIME, Agenda
from .backend import Backend, Calling
from .batching import Renewal, by_time, time_to_renew
from .claim import Claim, Unanswered, Waiting
from .evicting import evictor_of
from .handle import Handle
from .lasting import end
from .live import LiveClaim
from .removals import Removals
from .succession import close_up
from .waiting import Hints
from .weakly import weakly
from .worker import LINGER, Worker

if TYPE_CHECKING:
    from .telling import Stream

log = logging.getLogger("lockline")

TICK = 0.5
"""The longest sleep of the worker: how long a push about a held claim (an eviction) may lie unread while nobody waits."""
SOON = 1 / 12
"""Claims that are due within this share of their ttl travel along with one that is due now."""
WITHDRAWAL = 0.25
"""How long a call that was cut short, or whose time is over, may take to undo what it may have done; the background has longer."""
A_MOMENT = 0.1
"""How long the end of a client waits for each request that is still under way."""
A_QUESTION = 0.25
"""How long those who were taken away may be kept from hearing of it by the question who did it; all of one renewal together."""
TOGETHER = 2000
"""Claims that are renewed by one call, at most: the first of very many shall not wait for the answer to the last."""
AT_ONCE = 4
"""Renewals of one order of magnitude under way at once, at most: one that gets no answer does not keep the others from theirs."""


class Keeper:
    """Renews what is due, notes what is lost, and withdraws what could not be withdrawn at once.

    Its one loop never waits for the store, so a holder is told in time of its loss whatever the store does: what asks the
    store runs beside it.
    """

    def __init__(
        self, backend: Backend, runtime: Runtime, forget: Callable[[LiveClaim], None], stream: Stream | None = None
    ) -> None:
        self._backend = backend
        self.stream = stream
        """Who hears what happens here."""
        self._runtime = runtime
        self._forget = forget
        self.hints = Hints(runtime, backend.reader, self.ring, self._expects)
        """Where pushes arrive: one about a claim that is held (an eviction) is followed at once, not at the next tick."""
        backend.report_to(self.hints)
        self.reset()

    def _expects(self, claim_id: str) -> bool:
        live = self.books.get(claim_id)
        return live is not None and live.token is None

    def ring(self) -> None:
        """Have the worker look round now, if there is one; safe from anywhere."""
        self._worker.ring()

    def reset(self) -> None:
        """As new; in a forked child the parent's worker, locks and claims do not exist."""
        self.hints.forked()
        self._kept: dict[str, LiveClaim] = {}
        self.removals = Removals(self._runtime)
        self.books: dict[str, LiveClaim] = {}
        """Every claim that may stand in the store: from before its first request until its end was confirmed or is owed."""
        self._renewals: list[Renewal] = []
        self._talked_of: set[str] = set()
        """Those of them that a push spoke of meanwhile."""
        self._abandoned = False
        self._agenda = Agenda()
        self._worker = Worker(
            self._runtime, "lockline-keeper", self._look_round, lambda: not self.books and not self.removals,
            net=TICK, linger=lambda: 0.0 if self._abandoned else LINGER,
            # Where another process can speak to this one, its word about what is held wakes the keeper as well.
            signal=self._backend.signal() if isinstance(self._backend, Calling) else None,
        )  # fmt: skip

    def note(self, live: LiveClaim) -> None:
        """Withdraw this claim as soon as nobody answers for it, until it is struck out."""
        self.books[live.claim.id] = live
        if self._worker.planned == float("inf"):
            self._worker.wake()

    def strike(self, claim: Claim) -> None:
        """Nothing of this claim is left in the store, or it is owed."""
        self.books.pop(claim.id, None)

    def add(self, live: LiveClaim) -> None:
        """Keep this claim alive from now on."""
        self._kept[live.claim.id] = live
        if self.hints.early and live.token is not None:
            self.hints.pass_on(live.claim.id)
        # Looked at here and not asked there: this is on the way of every acquire.
        if self._agenda.rests:
            self._agenda.note(min(live.due, live.deadline))
        planned = self._worker.planned
        if live.due < planned or live.ends < planned or live.ceiling.until < planned:
            self._worker.wake()

    def line_up(self, live: LiveClaim, stands: Waiting) -> None:
        """Keep this claim alive while it waits."""
        # What stands nowhere cannot be renewed; the keeper first hears of it when it holds.
        if stands.stands:
            self.add(live)

    def confirm(self, live: LiveClaim, sent: float, claim: Claim) -> None:
        """The store has confirmed the claim in this form, by a request that was sent then."""
        margin = live.deadline - self._runtime.now()
        live.acknowledge(sent, claim.ttl)
        if self.stream is not None and live.token is not None and live.lost is None:
            self.stream.renewed(live, sent, margin)

    def hear_of_loss(self, live: LiveClaim) -> None:
        """It was lost just now; safe from anywhere."""
        if self.stream is not None:
            self.stream.lost(live)

    def _hear_of_store(self, problem: object) -> None:
        """A renewal was answered, or what became of it instead."""
        if self.stream is not None and problem is None:
            self.stream.answered()
        elif self.stream is not None:
            self.stream.silence(problem)

    def drop(self, live: LiveClaim) -> None:
        """Leave this claim alone from now on."""
        self._kept.pop(live.claim.id, None)

    def owe(self, claim: Claim, kept_until: float = 0.0) -> None:
        """Withdraw this claim in the background, until it is confirmed or its ttl is over."""
        self.removals.owe(claim, kept_until)
        self.strike(claim)
        try:
            self._worker.wake()
        except RuntimeError as problem:
            # Whoever owes has an error of its own to tell; the next one who wakes the worker starts it.
            log.error("a claim on %r is left to its ttl for now: %s", claim.name, problem)

    async def withdraw(self, claim: Claim, deadline: float | None = None, kept_until: float = 0.0) -> bool:
        """Undo a claim that may have been applied; what cannot be undone soon, at a caller's deadline at once, is owed (False)."""
        now = self._runtime.now()
        until = now + WITHDRAWAL if deadline is None else min(deadline, now) + WITHDRAWAL
        if now >= until:
            self.owe(claim, kept_until)
            return False
        try:
            there = await end(self._backend, claim, kept_until - now, until)
        except BaseException as problem:
            self.owe(claim, kept_until)
            if isinstance(problem, LocklineError):
                return False
            raise
        else:
            live = self.books.get(claim.id)
            if there and live is not None and kept_until <= now:
                close_up(live, self.books)
            self.strike(claim)
            return True

    def others_under_way(self, me: object) -> bool:
        """Whether a call that is not this thread's or task's own is at a claim that it will strike out."""
        return any(live.under_way() and live.key[0] is not me for live in list(self.books.values()))

    def kept(self) -> list[LiveClaim]:
        """Every claim that is being kept."""
        return list(self._kept.values())

    async def stop(self, until: float) -> None:
        """End the worker."""
        await self._worker.stop(until)
        # What asks the store may be at it for longer than anybody wants to wait, and does no harm.
        for one in (self.removals.under_way(), *(renewal.worker for renewal in self._renewals)):
            if one is not None:
                await one.join(min(until, self._runtime.now() + A_MOMENT))

    def serve(self, client: object) -> None:
        """Once that is garbage, nobody is left."""
        # Weak on both sides, or what waits for the end would put it off for ever: a claim knows the task that took it, which may have
        # a lease as its result, and a listener may know its own client.
        weakref.finalize(client, weakly(self.abandon)).atexit = False

    def abandon(self) -> None:
        """Nobody is left who could bring new claims: the worker need not wait for any."""
        self._abandoned = True
        self._worker.ring()

    async def settle(self, until: float) -> None:
        """Withdraw what is owed, and let those hear who listen."""
        await self.removals.settle(self._backend, until)
        if self.stream is not None:
            await self.stream.flush()

    async def _look_round(self) -> float:
        """Hear what was said, look at every claim once if something may be due, have that done; when to look again."""
        now = self._runtime.now()
        due = self._agenda.round_is_due(now)
        if due:
            self._agenda.begin_round(now, len(self._kept))
            await self._take_over_orphans()
        if self._kept:
            await self._backend.attend()
        self._talked_of.update(self.hints.take(self._kept))
        for claim_id in list(self.hints.early):
            # Never to wait, or withdrawn. One by one: a claim that came while we looked keeps its hint.
            if claim_id not in self.books:
                self.hints.early.discard(claim_id)
        if due or self._talked_of:
            await self._go_through_all(now)
        if self.removals:
            self.removals.settle_aside(self._backend)
        return self._agenda.next(now + TICK)

    async def _go_through_all(self, now: float) -> None:
        ripe: list[LiveClaim] = []
        soon: list[LiveClaim] = []
        # By those who are at it, so that none that was never begun, or was cut short, keeps its claims from the next.
        self._renewals = [renewal for renewal in self._renewals if renewal.worker.alive()]
        asked = {claim_id for renewal in self._renewals for claim_id in renewal.asked}
        spoken_of, soonest = self._talked_of, float("inf")
        for at, live in enumerate(list(self._kept.values()), 1):
            if at % AT_A_TIME == 0:
                await self._runtime.sleep(0)
            if now >= (deadline := live.deadline):
                self._end(live, "expired")
                continue
            if live.token is not None and deadline < soonest:
                soonest = deadline
            claim = live.claim
            if claim.id in asked:
                continue
            talked_of = claim.id in spoken_of
            if live.due > now + claim.ttl * SOON and live.ask_at > now and not talked_of:
                # Most of them, each time: nothing is to be done, whoever wants it renewed.
                soonest = min(soonest, live.due, live.ask_at)
                continue
            if not self._wanted(live):
                if talked_of:
                    live.ask_at = now
                if live.ask_at <= now:
                    ripe.append(live)
                else:
                    soonest = min(soonest, live.ask_at)
                continue
            if talked_of:
                # Until it was asked for: perhaps others are, as many as may be.
                live.due = now
            (ripe if live.due <= now else soon).append(live)
        # What was said before an answer that is still under way has to be asked for again.
        self._talked_of.intersection_update(asked)
        if ripe:
            for size, batch in by_time(ripe + soon, now).items():
                await self._begin_renewal(batch, size)
        elif soon:
            soonest = min(soonest, *(live.due for live in soon))
        self._agenda.end_round(soonest)

    async def _take_over_orphans(self) -> None:
        """Owe every claim whose call is over and that is in nobody's hands: an exception struck between two instructions."""
        for at, live in enumerate(list(self.books.values()), 1):
            if at % AT_A_TIME == 0:
                await self._runtime.sleep(0)
            if live.answered_for() or live.claim.id not in self.books:
                continue
            live.give_up(BaseException)
            self.hints.forget(live.claim.id)
            self.removals.owe(live.claim, live.outlasts)
            self.drop(live)
            self.strike(live.claim)
            self._forget(live)

    async def _begin_renewal(self, batch: list[LiveClaim], size: int) -> None:
        if self._is_full(size):
            # The next one that ends wakes us, to go through all of them.
            return
        asked = {live.claim.id for live in batch}

        async def renewal() -> None:
            try:
                await self._renew_all(batch)
            finally:
                asked.clear()
                self._agenda.note(0.0 if self._is_full(size) else min(live.due for live in batch))
                self._worker.ring()

        try:
            worker = self._runtime.spawn(renewal, "lockline-keeper-renewal")
        except RuntimeError as problem:
            # No thread to be had: to watch deadlines late is better than to let leases go.
            log.warning("renewing %d claims in the keeper's own thread: %s", len(batch), problem)
            await self._renew_all(batch)
            return
        self._renewals.append(Renewal(worker, asked, size))

    def _is_full(self, size: int) -> bool:
        return sum(renewal.size == size for renewal in self._renewals) >= AT_ONCE

    def _wanted(self, live: LiveClaim) -> bool:
        if live.token is None:
            return True
        if not live.renews or live.abandoned:
            return False
        if live.me is not None and self._runtime.ended(live.me):
            outcome = self._runtime.outcome(live.me)
            if not (isinstance(outcome, Handle) and outcome._live is live):
                return False
            # A task whose result is the lease has handed it to whoever awaits it. If nobody does, the lease goes with the task.
            self._forget(live)
            live.be_nobodys()
        return True

    async def _renew_all(self, batch: list[LiveClaim]) -> None:
        """Renew these in parts; but a store that is silent, or one of its servers, is waited for once and not for each part."""
        together = TOGETHER
        while batch:
            part, batch = batch[:together], batch[together:]
            answered = await self._renew(part)
            if not answered:
                for live in batch:
                    live.put_off(self._runtime.now(), "it was silent when others were to be renewed")
                return
            if answered < len(part):
                together = len(batch)

    async def _renew(self, batch: list[LiveClaim]) -> int:
        """Renew these with one call; how many were answered."""
        sent = self._runtime.now()
        # One that gets no answer is given up when the next would be due, so that there is time for another.
        until = max(sent + 0.05, sent + min(time_to_renew(live, sent) for live in batch))
        # Renewed for what it has left, a claim lives no longer than it would anyway: that only asks whether it is there.
        claims = [
            live.claim if self._wanted(live) else live.claim._replace(ttl=max(live.ends - sent, 0.001))
            for live in batch
        ]
        try:
            fates = await self._backend.renew(
                [live.stored(claim) for live, claim in zip(batch, claims, strict=True)], until
            )
        except Exception as problem:
            # No answer is not loss: each claim lives until its own deadline, and we ask again before that.
            level = logging.DEBUG if isinstance(problem, LocklineError) else logging.ERROR
            log.log(level, "renewing %d claims failed: %s", len(batch), problem)
            now = self._runtime.now()
            for live in batch:
                live.put_off(now + min(live.claim.ttl / 10, 1.0), problem)
            self._hear_of_store(problem)
            return 0
        self._hear_of_store(next((fate.problem for fate in fates if isinstance(fate, Unanswered)), None))
        patience = self._runtime.now() + A_QUESTION
        for live, claim, fate in zip(batch, claims, fates, strict=True):
            if self._kept.get(claim.id) is not live:
                continue
            if fate is None:
                if claim.ttl < live.claim.ttl:
                    # That only asked whether it is there.
                    live.acknowledge(sent, claim.ttl)
                else:
                    self.confirm(live, sent, claim)
                live.ask_at = float("inf")
            elif isinstance(fate, Unanswered):
                live.put_off(self._runtime.now() + min(live.claim.ttl / 10, 1.0), fate.problem)
            else:
                expired = self._runtime.now() >= live.deadline
                reason: Reason = fate.reason or ("expired" if expired else "evicted")
                if reason == "evicted" and live.token is not None and self._runtime.now() < patience:
                    live.evictor = await evictor_of(self._backend, claim.name, live.token, patience)
                    if self._kept.get(claim.id) is not live:
                        continue
                self._end(live, reason)
        return sum(not isinstance(fate, Unanswered) for fate in fates)

    def _end(self, live: LiveClaim, reason: Reason) -> None:
        self._kept.pop(live.claim.id, None)
        live.note_loss(reason)
        if live.listened_to:
            self._runtime.call_aside(live.tell)
        self._forget(live)
        if reason == "expired" and live.token is not None and not live.lock_delay:
            # We trust it no longer (garbage, max_hold, the margin for drift), the store may still: let the next in.
            self.removals.owe(live.claim)
        if live.token is not None:
            self.strike(live.claim)
        else:
            self.hints.heard(live.claim.id)
