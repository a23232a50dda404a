"""One claim of this client, and all the client knows of it: whether it holds, until when it may trust that, how it ended."""

from __future__ import annotations

import copy
import inspect
import logging
import weakref
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import Cause, LeaseLost, Reason
from ..runtime import Runtime, Signal
from ..runtime.clock import TRUSTED, clock_time
from .claim import Ceiling, Claim, Grant

if TYPE_CHECKING:
    from .handle import Handle

log = logging.getLogger("lockline")

RENEWALS_PER_TTL = 3
A_DETACH = 0.25
"""How often whoever waits for the end of a lease looks what became of its detach."""


NO_CEILING = Ceiling(float("inf"))


class Silence(NamedTuple):
    """Renewals that got no answer: when the first of them was sent, and what became of the last."""

    since: float
    problem: str


Call = list[weakref.ref[Any]]
"""A call of the client's, as the coroutine that runs it; a list because the coroutine is told of itself by it.

Weak, because one that was cut before it began would else keep itself alive, and the handle that it was to release.
"""


class Watcher(Protocol):
    """Who is to hear of a claim, at any moment and from any thread."""

    def ring(self) -> None:
        """Look round now."""

    def hear_of_loss(self, live: LiveClaim) -> None:
        """It was lost just now."""


class State(Enum):
    """The life of a claim, which only ever goes forward; but a detach that did not happen leaves it holding."""

    WAITING = "waiting"
    HOLDING = "holding"
    DETACHING = "detaching"
    """A detach went out, and what became of it is not known."""
    RELEASING = "releasing"
    """A release went out, and no answer has come."""
    RELEASED = "released"
    LOST = "lost"


# By names of the module: an attribute of an Enum takes longer to find, and these are looked at several times per grant.
WAITING, HOLDING, DETACHING, RELEASING, RELEASED, LOST = State
GIVEN_BACK = (RELEASING, RELEASED)


class LiveClaim:
    """One claim of this client: it waits, holds, and then is either released or lost."""

    # What most claims never change is said once for all; a claim is made for each acquire.
    limit = float("inf")
    token: int | None = None
    ends = 0.0
    """When the ttl that the store last confirmed runs out, less the margin; 0 before the first answer."""
    ceiling = NO_CEILING
    asked = True
    """Whether the store may have been asked for it; if not, there is nothing to undo."""
    due = 0.0
    ask_at = float("inf")
    """When to ask whether it is still there, of one that is not renewed: never, unless it was spoken of."""
    state = WAITING
    keep_for: float | None = None
    """How long it holds at least, counted from the grant, whenever it is released."""
    kept_until = 0.0
    lock_delay = 0.0
    """How much longer than its holder trusts it the store keeps a claim that was lost."""
    lost: LeaseLost | None = None
    """How it was lost; noted before the state says so, so that of two who change that at once the loss stays."""
    abandoned = False
    outlives_client = False
    """Whether closing its client leaves it to its ttl."""
    detached = False
    """Whether its place is kept for whoever comes with the ticket: to leave its block gives nothing back."""
    ticket = 0
    """Its token once it holds; known of one that waits only where it stands behind one of ours."""
    behind = ""
    """The id of the claim of ours that it stands directly behind."""
    heir: LiveClaim | None = None
    """The claim of ours that stands directly behind this one."""
    turn: Grant | None = None
    """The turn that the one ahead, of ours, has handed on to it."""
    silence: Silence | None = None
    """Since when renewals have failed, and how; None while they are answered."""
    call: Call | None = None
    """The acquire or release that is at it, or was last."""
    given_up_for: type[BaseException] | None = None
    """What ended the call that was at it, if that is why it was given up."""
    let_go: float | None = None
    told = False
    """Whether its story is told (`telling`)."""
    loss_told = False
    evictor = ""
    """Who took it away, where that was left for it to find."""
    _signal: Signal | None = None

    def __init__(
        self, claim: Claim, runtime: Runtime, key: tuple[object, str], renews: bool, max_hold: float | None,
        keeper: Watcher,
    ) -> None:  # fmt: skip
        self.claim = claim
        self.keeper = keeper
        self.runtime = runtime
        self.key = key
        """Under whom it is known as held, for re-entrance."""
        self.me: object = key[0]
        """The thread or task whose end also ends renewal; None once it has handed the lease on."""
        self.renews = renews
        self.max_hold = max_hold
        self._handles: list[weakref.ref[Handle]] = []
        self._callbacks: list[Callable[[], object]] = []

    # Counted each time and not kept as a number: an exception between two instructions would leave that wrong for ever,
    # and a handle that is gone is gone even if its `__del__` was cut short.

    @property
    def handles(self) -> int:
        """How many handles are open."""
        return sum(1 for ref in self._handles if (handle := ref()) is not None and handle.in_hand())

    @property
    def writes(self) -> bool:
        """Whether an open handle writes."""
        return any((handle := ref()) is not None and handle._writes and handle.in_hand() for ref in self._handles)

    @property
    def shared(self) -> bool:
        """Whether more than one handle is open."""
        return len(self._handles) > 1 and self.handles > 1

    @property
    def handed_out(self) -> bool:
        """Whether anybody ever had a handle on it."""
        return bool(self._handles)

    @property
    def outlasts(self) -> float:
        """Until when it stands, whoever gives it back and how; 0 of one that was lost, or that nobody ever worked under."""
        return self.kept_until if self.kept_until and self.lost is None and self.handed_out else 0.0

    def under_way(self) -> bool:
        """Whether a call of the client's is at this claim now."""
        # A coroutine that is over has no frame, by whatever way it ended: nobody has to note that.
        coroutine = self.call[0]() if self.call else None
        return coroutine is not None and coroutine.cr_frame is not None

    def answered_for(self) -> bool:
        """Whether somebody will still see to the end of this claim: a call, an open handle, or its ttl once that was dropped."""
        return self.under_way() or (self.state not in GIVEN_BACK and (self.abandoned or self._in_hand()))

    def _in_hand(self) -> bool:
        # A loop, because the keeper asks this of every claim again and again.
        for ref in self._handles:
            handle = ref()
            if handle is not None and handle.in_hand():
                return True
        return False

    @property
    def deadline(self) -> float:
        """Until when the claim may be trusted with no further word from the store."""
        ends, ceiling = self.ends, self.ceiling.until
        return ends if ends < ceiling else ceiling

    @property
    def alone(self) -> bool:
        """Whether nobody holds beside it once it holds."""
        return self.claim.weight == self.claim.capacity

    def stored(self, claim: Claim) -> Claim:
        """As the store is to keep it: whoever is lost stays in the line for its lock-delay, whoever releases does not."""
        return claim._replace(ttl=claim.ttl + self.lock_delay, stays=True) if self.lock_delay else claim

    def acknowledge(self, sent: float, ttl: float) -> None:
        """The store confirmed a request that was sent then: trust the claim for that much longer.

        A deadline that has passed stays passed, even if the store was more patient: somebody may have been told.
        """
        if self.ends and self.runtime.now() >= self.deadline:
            self.expire()
            return
        ends = sent + ttl * TRUSTED
        if ends > self.limit:
            ends = self.limit
        if ends > self.ends:
            self.ends = ends
        self.due = sent + ttl / RENEWALS_PER_TTL
        self.silence = None

    def count_from(self, sent: float, ttl: float) -> None:
        """The claim was won by a request that was sent then: only that counts, whatever was confirmed while it waited."""
        self.ends = sent + ttl * TRUSTED
        self.due = sent + ttl / RENEWALS_PER_TTL

    def put_off(self, until: float, problem: object) -> None:
        """The store did not answer, for this reason: ask again then."""
        self.silence = Silence(self.runtime.wall() if self.silence is None else self.silence.since, str(problem))
        self.due = until
        if self.ask_at < until:
            self.ask_at = until

    def grant(self, token: int) -> None:
        """From here on the claim holds, unless it was lost meanwhile."""
        self.token = token
        self.state = HOLDING
        if self.lost is not None:
            self.state = LOST
        if self.keep_for is not None:
            self.kept_until = self.runtime.now() + self.keep_for
        if self.max_hold is not None:
            self.limit = self.runtime.now() + self.max_hold
            self.ends = min(self.ends, self.limit)

    def remaining(self) -> float:
        """Seconds until the confirmed ttl ends; zero at once, and for ever, when it or the session may no longer be trusted."""
        if self.state is not HOLDING:
            return 0.0
        now = self.runtime.now()
        left = self.ends - now
        if left > 0 and now < self.ceiling.until:
            return left
        self.expire()
        return 0.0

    def expire(self) -> None:
        """Note that the deadline has passed. Whoever listens is told by the keeper."""
        if self.state not in GIVEN_BACK:
            self._end("expired")

    def _end(self, reason: Reason) -> None:
        first = self.lost is None
        if first:
            self.lost = self._loss(reason)
        self.state = LOST
        if first:
            self.keeper.hear_of_loss(self)

    def begin_detach(self) -> None:
        """A detach goes out: what it keeps may be over, or withdrawn, before its answer is here, so nothing looks like a good lease."""
        self.state = DETACHING if self.lost is None else LOST

    def hold_on(self) -> None:
        """The detach did not happen, and never will."""
        if self.state is DETACHING:
            self.state = HOLDING if self.lost is None else LOST

    def begin_release(self) -> bool:
        """A release goes out: from here on nothing looks like a good lease, wherever it is cut short. Whether it is the first."""
        first = self.state is not RELEASING
        if self.lost is None:
            self.state = RELEASING
        return first

    def be_nobodys(self) -> None:
        """No thread or task ends it by its own end from now on, and it keeps none of them."""
        self.me = None
        self.key = (None, self.claim.name)

    def give_up(self, why: type[BaseException] | None = None) -> None:
        """It is given back, or will be, because its call ended like that; what was lost stays lost."""
        self.given_up_for = why
        if self.lost is None:
            self.state = RELEASED

    def find_gone(self) -> None:
        """The release found that the store had it no more."""
        self._end("expired" if self.runtime.now() >= self.deadline else "evicted")

    def note_loss(self, reason: Reason) -> None:
        """The claim is gone: note it, and wake those who wait for that."""
        if self.state in GIVEN_BACK:
            return
        self._end(reason)
        if self._signal is not None:
            self._signal.set()

    def lose(self, reason: Reason) -> None:
        """The claim is gone: note it, and tell whoever listens."""
        self.note_loss(reason)
        self.tell()

    def _loss(self, reason: Reason) -> LeaseLost:
        cause, detail = why_lost(self, reason)
        return LeaseLost(self.claim.name, token=self.token, reason=reason, cause=cause, detail=detail)

    def loss(self) -> LeaseLost:
        """The loss as an error to raise: each time a new one, without the traces and contexts of the times before."""
        assert self.lost is not None
        return copy.copy(self.lost)

    @property
    def listened_to(self) -> bool:
        """Whether somebody is to be called back on loss."""
        return bool(self._callbacks)

    def tell(self) -> None:
        """Wake those who wait for the end of this claim, and call back those who asked for its loss."""
        if self._signal is not None:
            self._signal.set()
        if self.lost is None:
            return
        callbacks = self._callbacks
        while callbacks:
            try:
                # Looked for and taken in one step: the keeper, a release and whoever begins to listen may tell it at the same moment.
                callback = callbacks.pop(0)
            except IndexError:
                return
            try:
                callback()
            except Exception:
                log.exception("an on_lost callback for %r failed", self.claim.name)

    def listen(self, callback: Callable[[], object]) -> None:
        """Call back on loss, now if it is lost already."""
        self._callbacks.append(self.runtime.here(callback))
        self.remaining()
        if self.lost is not None:
            self.tell()

    async def ended(self, until: float | None) -> bool:
        """Wait until the claim is lost (True), or released, or that moment has come (False)."""
        signal = self._signal
        if signal is None:
            # Of two threads that come first, both get the same: one of its own would be set by nobody.
            signal = vars(self).setdefault("_signal", self.runtime.signal())
        while True:
            self.remaining()
            if self.state in (LOST, *GIVEN_BACK):
                return self.state is LOST
            now = self.runtime.now()
            if until is not None and now >= until:
                return False
            # The deadline is looked at here too, so that loss is told in time even if the keeper hangs. But while a detach is
            # under way it says nothing: that one tells what came of it.
            end = self.deadline if self.state is not DETACHING else now + A_DETACH
            await signal.wait(end if until is None else min(until, end))


def why_lost(live: LiveClaim, reason: Reason) -> tuple[Cause, str]:
    """Why a claim ended like that, as far as can be known here, with the cure where there is one."""
    if live.state is DETACHING and reason == "taken":
        return "silent", "its detach got no answer, and its place was given up, so that nobody has it twice"
    if reason == "closed":
        return "closed", "its client was closed"
    if reason != "expired":
        if live.evictor:
            return "gone", f"it was evicted by {live.evictor}"
        return "gone", "the store has it no more: an operator evicted it, or the store lost its memory"
    if live.limit <= live.runtime.now():
        return "max_hold", f"its max_hold of {live.max_hold:g} s is over"
    if live.abandoned:
        return "dropped", "the lease was dropped without release; keep it, or use `with`"
    if not live.renews:
        return "unrenewed", f"it was taken with renew=False for {live.claim.ttl:g} s"
    if live.me is not None and live.runtime.ended(live.me):
        return "ended", "the thread or task that took it has ended; call lease.adopt() where it is handed over to"
    if live.silence is not None:
        since = clock_time(live.silence.since)
        return "silent", f"the store has not confirmed it since {since}: {live.silence.problem}"
    if live.ceiling.until < live.ends:
        return "session", "the session with the store ended or could not be confirmed"
    return "paused", "nothing renewed it in time: this process was paused, or its event loop was blocked"


def takes_an_argument(callback: Callable[..., object]) -> bool:
    """Whether it can be called with one."""
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        return False
    return True
