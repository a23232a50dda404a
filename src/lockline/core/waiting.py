"""The one place where claims wait: hints arrive here, and whoever waits looks again after each, or when it is time anyway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ..errors import AcquireTimeout, BackendUnavailable, ClientClosed, LocklineError, printable
from ..runtime import Mailbox, Reader, Runtime
from ..runtime.clock import clock_time
from .claim import Claim, Gone, Grant, Waiting
from .succession import follow

if TYPE_CHECKING:
    from .backend import Backend
    from .glances import Glances
    from .live import LiveClaim

Asks = Callable[[Claim, float], Awaitable[Grant | Waiting | Gone]]
"""Asks the store where a claim stands."""

PAUSE: Final = 0.05
"""How long a waiter whose store does not answer waits before it asks again."""
A_LOOK: Final = 0.5
"""How long a look that is due may take at least: the caller's own deadline must not make it impossible."""

LAST_LOOK: Final = 0.125
"""How long the look may take that tells who was in the way: not all of the time that is left for a withdrawal."""


def begun(watcher: str) -> str:
    """By which id one who watches hears that the next change will be told.

    By another than the change itself: of one id two hints are one, and it would wait for a change that it had been told of.
    """
    return f"{watcher}-begun"


class Hints:
    """What a backend has heard, from any thread, and for whom: a claim that waits, or the keeper.

    A hint says no more than "look again". Nothing is decided by it.
    """

    closed = False
    """Whether nobody waits here any more."""

    def __init__(
        self, runtime: Runtime, reader: Reader | None, wake_keeper: Callable[[], None],
        will_wait: Callable[[str], bool] = lambda claim_id: True,
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._reader = reader
        self._wake_keeper = wake_keeper
        self._will_wait = will_wait
        self._at_close: list[Callable[[], object]] = []
        self.forked()

    def forked(self) -> None:
        """In a child: nobody waits, and nothing was heard."""
        self._mailbox: Mailbox = self._runtime.mailbox(self._not_expected, self._reader)
        self._unread: list[str] = []
        self._missed = False
        """Whether something may have been said that nobody heard."""
        self.early: set[str] = set()
        """Claims whose hint was here before the answer that told them to wait."""

    # -- from the backend --------------------------------------------------------------------------

    def heard(self, claim_id: str) -> None:
        """Something may have changed for this claim: if it waits it looks again, if it holds it is renewed now."""
        self._mailbox.deliver(claim_id)

    def wake(self, claim_id: str) -> None:
        """Its own client has given this claim its turn. What was heard of it, then or since, is the keeper's: perhaps that is over."""
        self._mailbox.wake(claim_id)

    def remind(self, claim_id: str) -> None:
        """Nothing was heard; but the keeper is to ask for this claim when it next looks round."""
        self._unread.append(claim_id)

    def missed(self) -> None:
        """Nobody knows what was missed of what is held: the keeper asks for all of it now. Who waits looks by itself, in time."""
        self._missed = True
        self._wake_keeper()

    def heard_all(self) -> None:
        """Nobody knows what was missed: everyone who waits looks again, and the keeper asks for what is held when it next looks round."""
        self._missed = True
        self._mailbox.deliver_all()

    def _not_expected(self, claim_id: str) -> None:
        if self._will_wait(claim_id):
            self.early.add(claim_id)
            # Both look after they have changed something: one of them sees the other.
            if self._mailbox.is_open(claim_id):
                self._mailbox.deliver(claim_id)
            elif not self._will_wait(claim_id):
                self.pass_on(claim_id)
        else:
            self.for_keeper(claim_id)

    def for_keeper(self, claim_id: str) -> None:
        """The keeper is to ask for this claim now, whether it waits or holds."""
        self._unread.append(claim_id)
        self._wake_keeper()

    # -- for the core ------------------------------------------------------------------------------

    def expect(self, claim_id: str) -> None:
        """From now on a hint for this claim is kept until it is taken; one that was early counts."""
        self._mailbox.open(claim_id)
        if claim_id in self.early:
            self._mailbox.deliver(claim_id)
            self.early.discard(claim_id)

    def pass_on(self, claim_id: str) -> None:
        """The claim holds without having waited: a hint that was early is the keeper's."""
        if claim_id in self.early:
            self.early.discard(claim_id)
            self.for_keeper(claim_id)

    def stop_expecting(self, claim_id: str) -> None:
        """It waits no longer. A hint that nobody took is the keeper's: the claim may hold by now."""
        if self._mailbox.close(claim_id):
            self.for_keeper(claim_id)

    def forget(self, claim_id: str) -> None:
        """Nothing is left of this claim."""
        self._mailbox.close(claim_id)
        self.early.discard(claim_id)

    def wait(self, claim_id: str, until: float) -> Awaitable[bool]:
        """Take the hint for this claim, unless it was woken; False when nothing came by then."""
        return self._mailbox.wait(claim_id, until)

    def close(self) -> None:
        """End every wait, now and later."""
        self.closed = True
        self._mailbox.deliver_all()
        for end in self._at_close:
            end()

    def at_close(self, end: Callable[[], object]) -> None:
        """Have this called as well, for those who wait for something else than a hint."""
        self._at_close.append(end)

    def take(self, kept: Iterable[str]) -> list[str]:
        """Claims that do not wait and that a push spoke of since the last call; all of these, if one may have been missed."""
        unread, self._unread = self._unread, []
        if self._missed:
            self._missed = False
            unread += [claim_id for claim_id in list(kept) if not self._mailbox.is_open(claim_id)]
        return unread


class Overdue(Exception):
    """The caller's own deadline came before the claim's turn."""

    def __init__(self, problem: BackendUnavailable | None) -> None:
        self.problem = problem
        """What the store failed with again and again up to then, where "it stayed taken" would be untrue."""


async def turn(
    hints: Hints, place: Asks, live: LiveClaim, stands: Waiting, deadline: float | None, known: Mapping[str, LiveClaim]
) -> Grant | None:
    """The grant once it is the claim's turn; None when its place was lost. Overdue at the caller's deadline.

    Cut short, whoever gives the claim back sees to it that no hint for it is expected any more: nobody here could, at every instruction.
    """
    hints.expect(live.claim.id)
    grant = await _turn(hints, place, live, stands, deadline, known)
    hints.stop_expecting(live.claim.id)
    return grant


async def _turn(
    hints: Hints, place: Asks, live: LiveClaim, stands: Waiting, deadline: float | None, known: Mapping[str, LiveClaim]
) -> Grant | None:
    now, claim = live.runtime.now, live.claim
    if stands.behind in known:
        follow(live, stands, known)
    look_by = stands.look_by
    silences = 0
    problem: BackendUnavailable | None = None
    while True:
        if hints.closed:
            raise ClientClosed()
        moment = now()
        if live.lost is not None or moment >= live.deadline:
            return None
        if live.turn is not None:
            return live.turn
        if deadline is not None and moment >= deadline:
            raise Overdue(problem if silences > 1 else None)
        until = live.deadline if deadline is None else min(live.deadline, deadline)
        if moment < look_by and not await hints.wait(claim.id, min(until, look_by)):
            if not stands.stands:
                # The store answered up to now, and there is no place that could be lost.
                live.count_from(now(), claim.ttl)
            continue
        if live.turn is not None:
            # That was the hint: there is nothing to ask.
            continue
        asked = now()
        try:
            answer = await place(claim, max(until, asked + A_LOOK))
        except ClientClosed:
            raise
        except BackendUnavailable as silence:
            # The claim itself stands there, whatever became of this question.
            silence.unsent = False
            if silence.permanent:
                raise
            # Not loss until the claim's own deadline; the store may be back by then.
            if now() + PAUSE >= live.deadline:
                if not silences:
                    # One question that outlasted the claim: we may have been frozen, and the store never silent.
                    return None
                raise
            # Once alone says nothing: the caller's deadline may have cut the question short.
            problem = silence
            silences += 1
            # Whatever is heard meanwhile: a connection that breaks again and again is no reason to ask without a pause.
            await live.runtime.sleep(PAUSE)
            look_by = 0.0
            continue
        silences = 0
        if type(answer) is Grant:
            return answer
        if type(answer) is Gone:
            return None
        assert type(answer) is Waiting
        if answer.behind in known:
            follow(live, answer, known)
        look_by = answer.look_by
        if not answer.stands:
            live.count_from(now(), claim.ttl)


def may_ask_again(problem: BaseException, runtime: Runtime, until: float) -> bool:
    """Whether the store was silent, and may be asked again: until the caller's deadline, or else for one ttl."""
    if not isinstance(problem, BackendUnavailable) or problem.permanent or isinstance(problem, ClientClosed):
        return False
    return runtime.now() < until - PAUSE


async def ran_out(glances: Glances, backend: Backend, live: LiveClaim, began: float, wait: bool) -> LocklineError:
    """The error of a call whose time is over, and whose claim had run out before the store's answer arrived."""
    if not wait:
        return BackendUnavailable(f"the store answered too late: the claim on {live.claim.name!r} had run out by then")
    return await timeout_error(glances, backend, live, began)


async def timeout_error(glances: Glances, backend: Backend, live: LiveClaim, began: float) -> AcquireTimeout:
    """What a caller is told whose time is over: who holds it, and how many were ahead."""
    now = live.runtime.now()
    holders: tuple[str, ...] = ()
    ahead = None
    try:
        seen = await glances.of(backend, live.claim, now + LAST_LOOK)
    except LocklineError:
        pass
    else:
        holders = tuple(
            f"{printable(held.owner)} since {clock_time(held.began)}, token {held.token}" for held in seen.holders
        )
        ahead = seen.places.get(live.claim.id)
    return AcquireTimeout(live.claim.name, waited=now - began, holders=holders, ahead=ahead)
