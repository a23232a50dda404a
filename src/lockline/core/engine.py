"""Acquire, release, extend, re-enter: every decision of a client, once, for both shells."""

from __future__ import annotations

import functools
import itertools
import logging
import secrets
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ..errors import (
    AcquireTimeout,
    BackendUnavailable,
    ClientClosed,
    ConfigError,
    LeaseLost,
    LocklineError,
    WouldDeadlock,
    printable,
)
from ..runtime import Runtime
from ..runtime.clock import clock_time
from ..runtime.fork import tell_after_fork
from . import waiting
from .arguments import a_ttl
from .ask import Ask
from .backend import Backend, Guarding, Sessional
from .claim import Claim, Grant, Line, Unanswered, Waiting
from .keeper import Keeper
from .live import RENEWALS_PER_TTL, Call, H, Handle, LiveClaim, not_held
from .removals import BATCH
from .waiting import PAUSE

T = TypeVar("T")

log = logging.getLogger("lockline")

PATIENCE = 10.0
"""How long a question about a line may take (look, list, evict)."""
GRACE = 0.2
"""How much longer than its caller's time a call may ask the store: a timeout of zero is no reason not to ask."""
WITHDRAWAL = 0.25
"""How long a call that was cut short, or whose time is over, may take to undo what it may have done; the keeper has longer."""
CLOSING = 2.0
"""How long a client that is closed waits for a store that says nothing."""
LONGEST_CLOSING = 10.0
"""And how long for one that answers, however much there is to release."""
A_TRY = 3.0
"""How long a try may take that has no timeout: a store that works answers at once."""
LONGEST_PAUSE = 0.25
"""How long a call whose store does not answer waits at most before it asks again; a little longer each time."""


class Engine:
    """One client's claims on one backend."""

    def __init__(self, backend: Backend, runtime: Runtime, owner: str | None) -> None:
        self.backend = backend
        self.runtime = runtime
        self._named_owner = owner
        # The worker knows the engine only as long as somebody else does: a client that was dropped leaves no thread.
        forget = weakref.WeakMethod(self._forget)
        self._keeper = Keeper(backend, runtime, lambda live: (known := forget()) and known(live))
        weakref.finalize(self, self._keeper.abandon).atexit = False
        self._hints = self._keeper.hints
        self._ceiling_of = backend.ceiling if isinstance(backend, Sessional) else None
        self._closed = False
        self._begin()
        tell_after_fork(self)

    def _begin(self) -> None:
        self._mine: dict[tuple[object, str], list[LiveClaim]] = {}
        self._exclusive: dict[str, LiveClaim] = {}
        """The claim of this client that holds a name alone."""
        # Random once, counted after that: unique for each attempt without asking the kernel each time.
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self.owner = self._named_owner or self.runtime.who()

    def forked(self) -> None:
        """In a child: nothing is held, nothing inherited is used, the parent notices nothing."""
        for live in self._keeper.kept():
            live.released = True
        self._keeper.reset()
        self._begin()
        self.backend.forked()

    # -- acquire -----------------------------------------------------------------------------------

    def acquire(
        self, ask: Ask, timeout: float | None, make: Callable[[LiveClaim], H], wait: bool = True
    ) -> Coroutine[Any, Any, H | None]:
        """The handle that is made of the claim once it holds; AcquireTimeout when it did not by then.

        If it may not wait: None, with nothing left behind, when it does not hold at once.
        """
        call: Call = []
        coroutine = self._acquire(call, ask, timeout, make, wait)
        call.append(weakref.ref(coroutine))
        return coroutine

    async def _acquire(
        self, call: Call, ask: Ask, timeout: float | None, make: Callable[[LiveClaim], H], wait: bool
    ) -> H | None:
        if self._closed:
            raise self._closed_error()
        me = self.runtime.me()
        key = (me, ask.name)
        mine = self._mine.get(key)
        if mine:
            if ask.kind != "permit":
                await self._clear_away(mine)
            held = self._held_already(ask, mine)
            if held is not None:
                if ask.ttl > held.claim.ttl:
                    await self.extend(held, ask.ttl)
                return make(held)
            if self._would_wait_for_itself(ask, mine):
                if not wait:
                    return None
                raise self._deadlock_error(ask, mine)
        began = self.runtime.now()
        deadline = None if timeout is None else began + timeout
        # A try is over with the first answer, and with the first silence.
        if not wait:
            deadline = began
        pause = PAUSE
        while True:
            claim = Claim(
                ask.name, f"{self._prefix}-{next(self._numbers)}", self.owner, ask.kind, ask.weight, ask.capacity,
                ask.ttl, self.runtime.wall(), ask.meta,
            )  # fmt: skip
            live = LiveClaim(claim, self.runtime, key, ask.renews, ask.max_hold, self._keeper.ring)
            live.call = call
            # Before the request goes out: whoever finds it there, and nobody who answers for it, withdraws it.
            self._keeper.note(live)
            try:
                outcome = await self._stand(live, began, deadline, wait)
                if outcome:
                    return make(live)
            except BaseException as problem:
                live.released = True
                self._keeper.drop(live)
                self._forget(live)
                if not getattr(problem, "unsent", False):
                    await self._withdraw(claim, None if deadline is None else deadline + WITHDRAWAL)
                self._keeper.strike(claim)
                if not self._may_go_on(problem, began + ask.ttl if deadline is None else deadline):
                    raise
                await self.runtime.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if outcome is None:
                self._keeper.strike(claim)
                return None
            # The place in the line was lost with the store's memory, or while nobody could renew it. Nothing was
            # held, so nothing is lost but the place: stand at the end of the line, until the caller's own deadline.
            self._keeper.drop(live)
            await self._withdraw(claim, None if deadline is None else deadline + WITHDRAWAL)
            self._keeper.strike(claim)
            # A store that answers slower than the ttl would keep us here for ever.
            if deadline is not None and self.runtime.now() >= deadline:
                raise await self._timeout_error(live, self.runtime.now() - began, deadline)

    def _may_go_on(self, problem: BaseException, until: float) -> bool:
        """Whether the store was silent, and may be asked again: until the caller's deadline, or else for one ttl."""
        if not isinstance(problem, BackendUnavailable) or problem.permanent or isinstance(problem, ClientClosed):
            return False
        return not self._closed and self.runtime.now() < until - PAUSE

    async def _stand(self, live: LiveClaim, began: float, deadline: float | None, wait: bool) -> bool | None:
        """True when the claim holds, False when its place was lost, None when it may not wait and there is no room."""
        claim = live.claim
        sent = self.runtime.now()
        until = sent + (claim.ttl if wait else min(claim.ttl, A_TRY))
        if deadline is not None and wait:
            until = min(until, max(deadline, sent + GRACE))
        if wait:
            # Before the claim stands: a hint that comes between would have nowhere to go.
            self._hints.expect(claim.id)
        answer = await self.backend.enter(claim, wait=wait, until=until)
        if answer is None:
            return None
        if self._ceiling_of is not None:
            live.ceiling = self._ceiling_of(claim)
        live.acknowledge(sent, claim.ttl)
        waited = type(answer) is not Grant
        if isinstance(answer, Waiting):
            self._refuse_to_wait_for_a_waiter(live)
            # What stands nowhere cannot be renewed; the keeper first hears of it when it holds.
            if answer.stands:
                self._keeper.add(live)
            try:
                won = await waiting.turn(self._hints, self.backend.place, live, answer, deadline)
            except waiting.Overdue as overdue:
                if overdue.problem is not None:
                    raise overdue.problem from None
                raise await self._timeout_error(live, self.runtime.now() - began, self.runtime.now()) from None
            if won is None:
                return False
            answer = won
        if wait:
            self._hints.stop_expecting(claim.id)
        if answer.sent is not None:
            live.count_from(answer.sent, claim.ttl)
            waited = False
        live.grant(answer.token)
        if live.remaining() <= 0:
            return False
        self._remember(live)
        self._keeper.add(live)
        if waited and (not live.renews or live.remaining() < claim.ttl / RENEWALS_PER_TTL):
            # Nobody renews it, or nobody could for a while: what is handed over shall be worth having.
            try:
                await self.extend(live, claim.ttl)
            except LeaseLost:
                # Evicted between the grant and our hearing of it: nobody held anything yet.
                return False
            except BackendUnavailable:
                if not live.renews:
                    raise
        if self._closed:
            raise self._closed_error()
        return True

    async def _withdraw(self, claim: Claim, until: float | None = None) -> None:
        """Undo a claim that may have been applied; what cannot be undone by then, the keeper undoes."""
        now = self.runtime.now()
        until = now + WITHDRAWAL if until is None else min(until, now + WITHDRAWAL)
        if now >= until:
            self._keeper.owe(claim)
            return
        try:
            await self.backend.leave(claim, until)
        except LocklineError:
            self._keeper.owe(claim)
        except BaseException:
            self._keeper.owe(claim)
            raise

    # -- re-entrance -------------------------------------------------------------------------------

    async def _clear_away(self, mine: list[LiveClaim]) -> None:
        """Withdraw what this thread or task has in its own way and in nobody's hands: dropped, or cut short on the way."""
        for live in [live for live in mine if not live.handles and not live.under_way()]:
            live.released = True
            self._keeper.drop(live)
            self._forget(live)
            await self._withdraw(live.claim)
            self._keeper.strike(live.claim)

    def _held_already(self, ask: Ask, mine: list[LiveClaim]) -> LiveClaim | None:
        """The claim of this very thread or task that the ask may share."""
        for live in mine:
            kind = live.claim.kind
            shares = (
                ask.kind == kind == "rlock"
                or (ask.kind == "read" and kind in ("read", "write"))
                or (ask.kind == kind == "write")
            )
            if shares and live.remaining() > 0:
                return live
        return None

    def _would_wait_for_itself(self, ask: Ask, mine: list[LiveClaim]) -> bool:
        """Whether a claim of this thread or task stands in the way of what it asks for now."""
        if ask.kind == "permit":
            return False
        return any(live.claim.kind != "permit" and live.remaining() > 0 for live in mine)

    def _deadlock_error(self, ask: Ask, mine: list[LiveClaim]) -> WouldDeadlock:
        kinds = {live.claim.kind for live in mine}
        if ask.kind == "write" and "read" in kinds:
            cure = "a reader cannot become a writer; take the write lock first and downgrade it"
        else:
            cure = "use client.rlock(name) where the same thread or task may ask again"
        return WouldDeadlock(f"this thread or task holds {ask.name!r} already and would wait for itself; {cure}")

    def _refuse_to_wait_for_a_waiter(self, live: LiveClaim) -> None:
        """The holder may be a task that waits for this very one to end."""
        holder = self._exclusive.get(live.claim.name)
        if holder is None or holder.remaining() <= 0 or not self.runtime.waits_for(holder.me, live.me):
            return
        raise WouldDeadlock(
            f"{live.claim.name!r} is held by a task that waits for this one; asyncio.wait_for before Python 3.12, gather and "
            "task groups run what they are given as another task: use acquire(timeout=...) or asyncio.timeout instead"
        )

    def _remember(self, live: LiveClaim) -> None:
        while True:
            mine = self._mine.setdefault(live.key, [])
            mine.append(live)
            # The keeper may have thrown the list away between the two, because it was empty.
            if self._mine.get(live.key) is mine:
                break
        if live.claim.weight == live.claim.capacity:
            self._exclusive[live.claim.name] = live

    def _forget(self, live: LiveClaim) -> None:
        if self._exclusive.get(live.claim.name) is live:
            self._exclusive.pop(live.claim.name, None)
        mine = self._mine.get(live.key)
        if mine is not None and live in mine:
            mine.remove(live)
            if not mine:
                self._mine.pop(live.key, None)

    # -- release and change ------------------------------------------------------------------------

    def release(self, handle: Handle) -> Coroutine[Any, Any, None]:
        """Give up what this handle holds: the claim itself with the last handle on it.

        NotHeld if it was released before, LeaseLost if it ended before, BackendUnavailable if no answer came:
        then it may be repeated, and the keeper repeats it too.
        """
        call: Call = []
        coroutine = self._release(call, handle)
        call.append(weakref.ref(coroutine))
        return coroutine

    async def _release(self, call: Call, handle: Handle) -> None:
        live = handle._live
        if not handle._open or (live.released and not live.doubtful):
            handle._open = False
            raise not_held(live)
        if live.shared:
            handle._open = False
            live.remaining()
            if live.lost is not None:
                raise live.loss()
            if handle._writes and not live.writes:
                await self.downgrade(live)
            return
        live.call = call
        now = self.runtime.now()
        if live.lost is None and now >= live.deadline:
            live.expire()
        if self._closed and live.lost is not None:
            # close() has withdrawn it; there is nobody left to ask.
            handle._open = False
            raise live.loss()
        self._keeper.drop(live)
        self._forget(live)
        first, live.doubtful = not live.doubtful, True
        # Before the request goes out: wherever we are cut short after that, nothing is left that looks like a good lease.
        live.released = live.lost is None
        # What is lost is only cleared away, which the keeper can do as well.
        patience = PATIENCE if live.lost is None else WITHDRAWAL
        try:
            there = await self.backend.leave(live.claim, now + min(live.claim.ttl, patience))
        except LocklineError:
            self._keeper.owe(live.claim)
            if live.lost is not None:
                handle._open = False
                live.tell()
                raise live.loss() from None
            raise
        except BaseException:
            live.doubtful = False
            handle._open = False
            live.tell()
            await self._withdraw(live.claim)
            self._keeper.strike(live.claim)
            raise
        if live.lost is None and not there and first:
            live.released = False
            live.lose("expired" if self.runtime.now() >= live.deadline else "evicted")
        live.doubtful = False
        handle._open = False
        self._keeper.strike(live.claim)
        if live.lost is not None:
            live.tell()
            raise live.loss()
        if live._signal is not None:
            live.tell()

    async def give_up(self, handle: Handle | None) -> None:
        """Cut short on its way into the caller's hands, or out of them: nobody else will give it back."""
        if handle is None:
            return
        handle._open = False
        live = handle._live
        if live.handles or live.under_way() or live.claim.id not in self._keeper.books:
            return
        live.released = live.lost is None
        self._keeper.drop(live)
        self._forget(live)
        await self._withdraw(live.claim)
        self._keeper.strike(live.claim)

    async def extend(self, live: LiveClaim, ttl: object) -> None:
        """Make the claim good for at least that long from now, once; its regular renewal goes on as before."""
        seconds = a_ttl(ttl)
        await self._change(live, live.claim._replace(ttl=seconds))

    async def stop_writing(self, handle: Handle) -> None:
        """This handle only reads from now on; the claim itself with the last handle that writes."""
        live = handle._live
        handle._writes = False
        if not live.writes:
            await self.downgrade(live)

    async def downgrade(self, live: LiveClaim) -> None:
        """Turn the writer into a reader in its place: no other writer can come between."""
        # Before the request: if no answer comes, the next renewal carries the lower weight all the same.
        live.claim = live.claim._replace(weight=1, kind="read")
        await self._change(live, live.claim)

    def adopt(self, live: LiveClaim) -> None:
        """The claim is from now on that of the thread or task that runs."""
        live.me = self.runtime.me()
        if live.remaining() > 0:
            self._forget(live)
            live.key = (live.me, live.claim.name)
            self._remember(live)

    def hand_on(self, live: LiveClaim) -> None:
        """The claim is from now on nobody's in particular: no thread or task ends it by its own end."""
        live.me = None
        self._forget(live)

    async def _change(self, live: LiveClaim, claim: Claim) -> None:
        if live.remaining() <= 0:
            if live.lost is not None:
                raise live.loss()
            raise not_held(live)
        sent = self.runtime.now()
        (fate,) = await self.backend.renew([claim], live.deadline)
        if isinstance(fate, Unanswered):
            raise fate.problem
        if fate is not None:
            self._keeper.drop(live)
            self._keeper.strike(live.claim)
            live.lose(fate.reason or "evicted")
            self._forget(live)
        elif not live.released:
            live.acknowledge(sent, claim.ttl)
            # The next regular renewal is due as before, whatever was asked for once.
            live.due = sent + live.claim.ttl / 3
        if live.lost is not None:
            live.tell()
            raise live.loss()

    def guard(self, live: LiveClaim) -> object:
        """What the store itself can check in the caller's own transaction; ConfigError where it has none."""
        if live.remaining() <= 0:
            raise live.loss() if live.lost is not None else not_held(live)
        if not isinstance(self.backend, Guarding):
            raise ConfigError(f"{self.backend.url} has no transactions that could check a lease; use lockline.fence")
        assert live.token is not None
        return self.backend.guard(live.claim, live.token)

    # -- questions ---------------------------------------------------------------------------------

    async def ask(self, question: Callable[[float], Awaitable[T]]) -> T:
        """Put a question to the backend, with a deadline."""
        if self._closed:
            raise self._closed_error()
        return await question(self.runtime.now() + PATIENCE)

    async def _timeout_error(self, live: LiveClaim, waited: float, deadline: float) -> AcquireTimeout:
        holders: tuple[str, ...] = ()
        ahead = None
        try:
            # Not all of the time that is left for a withdrawal.
            line: Line = await self.backend.look(live.claim.name, max(deadline, self.runtime.now()) + WITHDRAWAL / 2)
        except LocklineError:
            pass
        else:
            holders = tuple(
                f"{printable(held.owner)} since {clock_time(held.since)}, token {held.token}"
                for held in line.holders[:3]
            )
            ids = [claim.id for claim in line.claims]
            ahead = ids.index(live.claim.id) if live.claim.id in ids else None
        return AcquireTimeout(live.claim.name, waited=waited, holders=holders, ahead=ahead)

    # -- the end -----------------------------------------------------------------------------------

    def _closed_error(self) -> ClientClosed:
        return ClientClosed("this client is closed; connect a new one")

    async def close(self) -> None:
        """Release what is held, end every wait, let go of connections. Again is harmless."""
        if self._closed:
            return
        self._closed = True
        self._hints.close()
        await self._keeper.stop(self.runtime.now() + CLOSING)
        try:
            until = await self._release_all()
            # Those who waited withdraw their own claims on the way out.
            while self._keeper.others_under_way(self.runtime.me()) and self.runtime.now() < until:
                await self.runtime.sleep(0.005)
            await self._keeper.settle(until)
        finally:
            await self.backend.close()

    async def _release_all(self) -> float:
        """Give back every lease, many at a time; until when what is left to do may go on."""
        held = [live for live in self._keeper.kept() if live.token is not None]
        for live in held:
            self._keeper.drop(live)
            live.note_loss("closed")
        listened_to = [live for live in held if live.listened_to]
        told: list[LiveClaim] = []
        for live in listened_to:
            self.runtime.call_aside(functools.partial(_tell, live, told))
        claims = [live.claim for live in held]
        # Only now: to take note of thousands takes its own time on a busy machine.
        until = self.runtime.now() + CLOSING
        latest = until - CLOSING + LONGEST_CLOSING
        for at in range(0, len(claims), BATCH):
            try:
                await self.backend.leave_all(claims[at : at + BATCH], until)
            except LocklineError as problem:
                log.warning("%d leases were not released on close: %s", len(claims) - at, problem)
                # A store that cannot be reached will not be in a moment either.
                return self.runtime.now() if getattr(problem, "unsent", False) else until
            until = min(max(until, self.runtime.now() + CLOSING / 2), latest)
        # Whoever ends the program next shall not end a callback with it; one that takes its time keeps nobody.
        patience = self.runtime.now() + WITHDRAWAL
        while len(told) < len(listened_to) and self.runtime.now() < patience:
            await self.runtime.sleep(0.002)
        return until


def _tell(live: LiveClaim, told: list[LiveClaim]) -> None:
    live.tell()
    told.append(live)
