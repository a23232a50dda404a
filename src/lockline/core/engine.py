"""Acquire, release, extend, re-enter: every decision of a client, once, for both shells."""

from __future__ import annotations

import itertools
import secrets
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from ..errors import BackendUnavailable, ClientClosed, LeaseLost, LocklineError, NotHeld
from ..runtime import Runtime
from ..runtime.fork import tell_after_fork
from . import place, reentrance, waiting
from .arguments import a_ttl
from .backend import Backend, Sessional
from .claim import Claim, Unanswered, Waiting
from .closing import CLOSING, owe_what_waits_below, release_all
from .entrance import entrance_to
from .glances import Glances
from .guarding import guard
from .handle import H, Handle, check, not_held
from .keeper import WITHDRAWAL
from .lasting import let_go
from .live import GIVEN_BACK, RELEASED, RENEWALS_PER_TTL, Call, LiveClaim
from .succession import doubt, hand_turn_on
from .telling import Stream, keeper_for
from .terms import Terms
from .weakly import weakly

T = TypeVar("T")

PATIENCE = 10.0
"""How long a question about a line may take (look, list, evict)."""
GRACE = 0.2
"""How much longer than its caller's time a call may ask the store: a timeout of zero is no reason not to ask."""
A_TRY = 3.0
"""How long a try may take that has no timeout: a store that works answers at once."""
LONGEST_PAUSE = 0.25
"""How long a call whose store does not answer waits at most before it asks again; a little longer each time."""


class Engine:
    """One client's claims on one backend."""

    def __init__(self, backend: Backend, runtime: Runtime, owner: str | None, stream: Stream | None = None) -> None:
        self.backend, self.stream, self.runtime = backend, stream, runtime
        self._named_owner, self.closed = owner, False
        # The worker knows the engine only as long as somebody else does: a client that was dropped leaves no thread.
        self._keeper = keeper_for(stream)(backend, runtime, weakly(self._forget), stream)
        self._keeper.serve(self)
        self._hints = self._keeper.hints
        self._ceiling_of = backend.ceiling if isinstance(backend, Sessional) else None
        self._begin()
        tell_after_fork(self)

    def _begin(self) -> None:
        self._mine: dict[tuple[object, str], list[LiveClaim]] = {}
        self._exclusive: dict[str, LiveClaim] = {}
        """The claim of this client that holds a name alone."""
        # Random once, counted after that: unique for each attempt without asking the kernel each time.
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        self._glances = Glances(self.runtime)
        self._entrance = entrance_to(self.backend, self._hints)
        self.owner = self._named_owner or self.runtime.who()

    def forked(self) -> None:
        """In a child: nothing is held, nothing inherited is used, the parent notices nothing."""
        for live in self._keeper.kept():
            live.give_up()
        self._keeper.reset()
        self._begin()
        self.backend.forked()

    # -- acquire -----------------------------------------------------------------------------------

    def acquire(
        self, terms: Terms, timeout: float | None, make: Callable[[LiveClaim], H], wait: bool = True
    ) -> Coroutine[Any, Any, H | None]:
        """The handle that is made of the claim once it holds; AcquireTimeout when it did not by then.

        If it may not wait: None, with nothing left behind, when it does not hold at once; a timeout is then for the store's answer.
        """
        call: Call = []
        coroutine = self._acquire(call, terms, timeout, make, wait)
        call.append(weakref.ref(coroutine))
        return coroutine

    async def _acquire(
        self, call: Call, terms: Terms, timeout: float | None, make: Callable[[LiveClaim], H], wait: bool
    ) -> H | None:
        if self.closed:
            raise ClientClosed()
        me = self.runtime.me()
        key = (me, terms.name)
        mine = self._mine.get(key)
        if mine:
            if terms.kind != "permit":
                await self._clear_away(mine)
            held = reentrance.held_already(terms, mine)
            if held is not None:
                if terms.ttl > held.claim.ttl:
                    await self.extend(held, terms.ttl)
                return make(held)
            if reentrance.would_wait_for_itself(terms, mine):
                if not wait:
                    return None
                raise reentrance.deadlock_error(terms, mine)
        began = self.runtime.now()
        # A try is over with the first answer; and with the first silence, unless it has been given more time for that.
        deadline = began + (timeout or 0.0) if not wait else None if timeout is None else began + timeout
        pause = waiting.PAUSE
        while True:
            claim = Claim(
                terms.name, f"{self._prefix}-{next(self._numbers)}", self.owner, terms.kind, terms.weight, terms.capacity,
                terms.ttl, self.runtime.wall(), terms.meta, kept_for=terms.keep_for or 0.0,
            )  # fmt: skip
            live = LiveClaim(claim, self.runtime, key, terms.renews, terms.max_hold, self._keeper)
            live.call, live.keep_for, live.lock_delay = call, terms.keep_for, terms.lock_delay
            # Before the request goes out: whoever finds it there, and nobody who answers for it, withdraws it.
            self._keeper.note(live)
            try:
                outcome = await self._stand(live, terms, began, deadline, wait)
                if outcome:
                    return make(live)
            except BaseException as problem:
                await self._give_back(live, deadline, problem)
                if self.closed or not waiting.may_ask_again(problem, self.runtime, deadline or began + terms.ttl):
                    raise
                await self.runtime.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if outcome is None:
                self._keeper.strike(claim)
                return None
            # The place in the line was lost with the store's memory, or while nobody could renew it. Nothing was
            # held, so nothing is lost but the place: stand at the end of the line, until the caller's own deadline.
            await self._give_back(live, deadline)
            # A store that answers slower than the ttl would keep us here for ever.
            if deadline is not None and self.runtime.now() >= deadline:
                raise await waiting.ran_out(self._glances, self.backend, live, began, wait)

    async def _stand(
        self, live: LiveClaim, terms: Terms, began: float, deadline: float | None, wait: bool
    ) -> bool | None:
        """True when the claim holds, False when its place was lost, None when it may not wait and there is no room."""
        claim = live.claim
        if self._entrance is not None:
            await self._entrance.come_in(live, began, deadline, None if wait else A_TRY)
        sent = self.runtime.now()
        until = sent + claim.ttl
        if deadline is not None:
            until = min(until, max(deadline, sent + (GRACE if wait else A_TRY)))
        answer = await self.backend.enter(live.stored(claim), wait=wait, until=until)
        if self._entrance is not None:
            self._entrance.answered(live)
        if answer is None:
            return None
        if self._ceiling_of is not None:
            live.ceiling = self._ceiling_of(claim)
        live.acknowledge(sent, claim.ttl)
        if waited := isinstance(answer, Waiting):
            if (holder := self._exclusive.get(claim.name)) is not None:
                reentrance.refuse_to_wait_for_a_waiter(live, holder)
            self._keeper.line_up(live, answer)
            ask: place.Place = self.backend.place
            if terms.minds_the_wait:
                ask, answer = await place.minded(terms, self._glances, self.backend, live, answer, until)
            try:
                won = await waiting.turn(self._hints, ask, live, answer, deadline, self._keeper.books)
            except waiting.Overdue as overdue:
                if overdue.problem is not None:
                    raise overdue.problem from None
                raise await waiting.timeout_error(self._glances, self.backend, live, began) from None
            if won is None:
                return False
            answer = won
        if answer.sent is not None:
            live.count_from(answer.sent, claim.ttl)
            waited = False
        live.grant(answer.token)
        left = live.remaining()
        if left <= 0:
            return False
        self._remember(live)
        self._keeper.add(live)
        if waited and (left < claim.ttl / RENEWALS_PER_TTL or not live.renews):
            # Nobody renews it, or nobody could for a while: what is handed over shall be worth having.
            try:
                await self.extend(live, claim.ttl)
            except (LeaseLost, BackendUnavailable):
                # Evicted between the grant and our hearing of it, or over before the store answered: nobody held anything yet.
                if live.remaining() <= 0:
                    return False
                if not live.renews:
                    raise
        if self.closed:
            raise ClientClosed()
        return True

    # -- re-entrance -------------------------------------------------------------------------------

    async def _clear_away(self, mine: list[LiveClaim]) -> None:
        """Withdraw what this thread or task has in its own way and in nobody's hands: dropped, or cut short on the way."""
        for live in [live for live in mine if not live.handles and not live.under_way()]:
            await self._give_back(live)

    async def _give_back(self, live: LiveClaim, until: float | None = None, cut: BaseException | None = None) -> None:
        """Nobody wants this claim any more; nothing has to be undone of what was never sent, and so never answered."""
        live.give_up(None if cut is None else type(cut))
        self._hints.forget(live.claim.id)
        if self._entrance is not None:
            self._entrance.leave(live)
        self._keeper.drop(live)
        self._forget(live)
        if not live.asked or (not live.ends and getattr(cut, "unsent", isinstance(cut, NotHeld))):
            self._keeper.strike(live.claim)
        else:
            await self._keeper.withdraw(live.claim, until, live.outlasts)

    def _remember(self, live: LiveClaim) -> None:
        key, claim = live.key, live.claim
        while True:
            mine = self._mine.setdefault(key, [])
            mine.append(live)
            # The keeper may have thrown the list away between the two, because it was empty.
            if self._mine.get(key) is mine:
                break
        if claim.weight == claim.capacity:
            self._exclusive[claim.name] = live

    def _forget(self, live: LiveClaim) -> None:
        key, name = live.key, live.claim.name
        if self._exclusive.get(name) is live:
            self._exclusive.pop(name, None)
        mine = self._mine.get(key) or []
        if live in mine:
            mine.remove(live)
        if not mine:
            self._mine.pop(key, None)  # also one that whoever was cut short had left empty

    # -- release and change ------------------------------------------------------------------------

    def release(self, handle: Handle) -> Coroutine[Any, Any, None]:
        """Give up what this handle holds: the claim itself with the last handle on it.

        NotHeld if it was released before, LeaseLost if it ended before, BackendUnavailable if no answer came:
        then it may be repeated, and the keeper repeats it too.
        """
        coroutine = self._release(call := [], handle)
        call.append(weakref.ref(coroutine))
        return coroutine

    async def _release(self, call: Call, handle: Handle) -> None:
        live = handle._live
        if not handle._open or live.state is RELEASED:
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
        if self.closed and live.lost is not None:
            # close() has withdrawn it; there is nobody left to ask.
            handle._open = False
            raise live.loss()
        first = live.begin_release()  # cut off before this it is kept as ever, and after it given back
        self._keeper.drop(live)
        self._forget(live)
        hands_on = first and live.heir is not None and live.kept_until <= now
        heir = hand_turn_on(live, now, self._hints) if hands_on else None
        # What is lost is only cleared away, which the keeper can do as well.
        patience = PATIENCE if live.lost is None else WITHDRAWAL
        try:
            there = await let_go(self.backend, live, now + min(live.claim.ttl, patience), heir)
        except LocklineError:
            self._keeper.owe(live.claim, live.outlasts)
            if live.lost is not None:
                handle._open = False
                live.tell()
                raise live.loss() from None
            raise
        except BaseException:
            live.give_up()
            handle._open = False
            live.tell()
            await self._keeper.withdraw(live.claim, kept_until=live.outlasts)
            raise
        if there or not first:
            live.give_up()
        elif live.lost is None:
            live.find_gone()
            doubt(heir, self._hints)
        live.heir = None
        handle._open = False
        self._keeper.strike(live.claim)
        if live.lost is not None or live._signal is not None:
            live.tell()
        if live.lost is not None:
            raise live.loss()

    async def give_up(self, handle: Handle | None) -> None:
        """Cut short on its way into the caller's hands, or out of them: nobody else will give it back."""
        if handle is None:
            return
        handle._open = False
        live = handle._live
        if not live.handles and not live.under_way() and live.claim.id in self._keeper.books:
            await self._give_back(live)

    async def extend(self, live: LiveClaim, ttl: object) -> None:
        """Make the claim good for at least that long from now, once; its regular renewal goes on as before."""
        await self._change(live, live.claim._replace(ttl=a_ttl(ttl)))

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
        self._forget(live)
        live.be_nobodys()

    async def _change(self, live: LiveClaim, claim: Claim) -> None:
        check(live)
        sent = self.runtime.now()
        (fate,) = await self.backend.renew([live.stored(claim)], live.deadline)
        if isinstance(fate, Unanswered):
            raise fate.problem
        if fate is not None:
            self._keeper.drop(live)
            self._keeper.strike(live.claim)
            live.lose(fate.reason or "evicted")
            self._forget(live)
        elif live.state not in GIVEN_BACK:
            self._keeper.confirm(live, sent, claim)
            # The next regular renewal is due as before, whatever was asked for once.
            live.due = sent + live.claim.ttl / 3
        if live.lost is not None:
            live.tell()
            raise live.loss()

    def guard(self, live: LiveClaim, connection: object) -> object:
        """What the store itself can check in the caller's own transaction; ConfigError where it has none."""
        check(live)
        assert live.token is not None
        return guard(self.backend, live.claim, live.token, connection)

    # -- questions ---------------------------------------------------------------------------------

    async def ask(self, question: Callable[[float], Awaitable[T]], patience: float = PATIENCE) -> T:
        """Put a question to the backend, with a deadline."""
        if self.closed:
            raise ClientClosed()
        return await question(self.runtime.now() + patience)

    # -- the end -----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Release what is held, end every wait, let go of connections. Again is harmless."""
        if self.closed:
            return
        self.closed = True
        self._hints.close()
        await self._keeper.stop(self.runtime.now() + CLOSING)
        try:
            until = await release_all(self.backend, self.runtime, self._keeper)
            # Those who waited withdraw their own claims on the way out.
            while self._keeper.others_under_way(self.runtime.me()) and self.runtime.now() < until:
                await self.runtime.sleep(0.005)
            owe_what_waits_below(self._keeper, self.runtime.me())
            await self._keeper.settle(until)
        finally:
            await self.backend.close()
