"""How a client tells what happens: hooks that only note, and one narrator beside that makes events of the notes.

A hook is an append to a queue: no lock, no I/O, no code of a listener's, so nobody is kept and nothing is left half done wherever
it is cut. All else, the listeners too, runs in the thread of the delivery. What an exception kept from being noted does no
harm: a claim ends when it is struck from the keeper's books, whatever happened before, and a story that was never begun is not told.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..errors import (
    AcquireTimeout,
    BackendUnavailable,
    ClientClosed,
    LineFull,
    LocklineError,
    WouldDeadlock,
    printable,
)
from ..runtime import Runtime
from ..runtime.clock import TRUSTED
from ..runtime.delivery import Delivery
from . import events
from .claim import Waiting
from .events import End, Event, Listener, Withdrawal
from .keeper import Keeper
from .listeners import Listeners
from .live import RELEASING, RENEWALS_PER_TTL, WAITING, LiveClaim

log = logging.getLogger("lockline")

MOST: Final = 10_000
"""Notes that wait for a slow listener, at most: beyond that new claims are not told of; what was begun is told to its end."""
FLUSH: Final = 0.25
"""How long the end of a client waits for its listeners."""
A_LOOK: Final = 1.0
"""How long a look at who holds may take."""
NAMES_AT_ONCE: Final = 20
"""Lines that are looked at in one go."""


class Note(NamedTuple):
    """What a hook saw."""

    what: str
    moment: float
    live: LiveClaim | None = None
    details: tuple[Any, ...] = ()


@dataclass(slots=True)
class Story:
    """A claim that was told of and has not ended."""

    common: dict[str, Any]
    """What all its events say."""
    asked: float
    waiting: bool = False
    token: int | None = None
    granted: float = 0.0
    behind: str = ""


class Stream:
    """What one client tells, and to whom."""

    def __init__(self, listeners: Sequence[Listener], *, store: str, runtime: Runtime, whole: bool) -> None:
        self._runtime = runtime
        self._store = store
        self._listeners = Listeners(listeners)
        self.whole = whole
        """Whether every claim's story is told; else only what nobody expects: losses, late renewals, a silent store."""
        self.wants_holders = any(getattr(listener, "wants_holders", False) for listener in listeners)
        self.wants_context = any(getattr(listener, "wants_context", False) for listener in listeners)
        self.silent = False
        self._silent_since: float | None = None
        self._stories: dict[str, Story] = {}
        self._untold = 0
        self._delivery: Delivery[Note] = Delivery(self._hear, "lockline-events")

    # -- hooks: from any thread, at any moment -----------------------------------------------------

    def _note(self, what: str, live: LiveClaim | None = None, *details: Any) -> None:
        self._delivery.put(Note(what, self._runtime.now(), live, details))

    def asked(self, live: LiveClaim) -> None:
        """A story begins, unless too many wait to be told."""
        if len(self._delivery) >= MOST:
            self._untold += 1
            return
        live.told = True
        self._note("asked", live)

    def waiting(self, live: LiveClaim, stands: Waiting) -> None:
        """It stands in the line."""
        self._note("waiting", live, stands.ahead, copy_context() if self.wants_context else None)

    def behind(self, live: LiveClaim, who: str) -> None:
        """These hold while it waits."""
        self._note("behind", live, who)

    def granted(self, live: LiveClaim) -> None:
        """It holds."""
        self._note("granted", live)

    def renewed(self, live: LiveClaim, sent: float, margin: float) -> None:
        """The store confirmed a renewal that was sent then, with so much left."""
        usual = usual_margin(live)
        late = live.renews and margin < usual / 2
        if late or (self.whole and live.told and len(self._delivery) < MOST):
            self._note("renewed", live, sent, margin, usual if late else None)

    def lost(self, live: LiveClaim) -> None:
        """It is lost; of one that nobody had yet, only its own call hears, which asks again."""
        if live.handed_out:
            self._note("lost", live)

    def ended(self, live: LiveClaim) -> None:
        """Nothing of it is left, or will be."""
        self._note("ended", live, live.state, live.given_up_for, live.let_go)

    def silence(self, problem: object) -> None:
        """The store did not answer."""
        if not isinstance(problem, ClientClosed):
            self.silent = True
            self._note("silent", None, str(problem))

    def answered(self) -> None:
        """The store did answer."""
        if self.silent:
            self._note("answered")

    def evicted(self, name: str, owner: str, holders: int, token: int | None) -> None:
        """An operator took it away, by this client."""
        if self.whole:
            self._note("evicted", None, name, owner, holders, token)

    def forked(self) -> None:
        """In a child: nothing is held and nobody waits, which its listeners have heard otherwise."""
        if self._stories:
            self._note("over", None, "forked", "forked")

    def finish(self) -> None:
        """Nobody is left who could tell how the stories end."""
        # What is still to be told knows its keeper: whoever says this has nothing left in the box.
        if self._stories:
            self._note("over", None, "cancelled", "cut short")

    def nudge(self) -> None:
        """Something may lie there that was put by one who was cut short."""
        if len(self._delivery):
            self._delivery.nudge()

    async def flush(self) -> None:
        """Wait a moment for the listeners."""
        until = self._runtime.now() + FLUSH
        self.nudge()
        while not self._delivery.idle and self._runtime.now() < until:
            await self._runtime.sleep(0.002)

    # -- the narrator: in the delivery's thread alone ----------------------------------------------

    def _hear(self, note: Note) -> None:
        if self._untold:
            untold, self._untold = self._untold, 0
            log.warning("an on_event listener is too slow: nothing was told of %d claims", untold)
        tell: Callable[..., None] = getattr(self, f"_tell_{note.what}")
        if note.live is None:
            tell(note.moment, *note.details)
        else:
            tell(note.live, note.moment, *note.details)

    def _tell(self, event: type[Event], moment: float, /, **details: Any) -> None:
        self._listeners(event(at=self._runtime.wall() - (self._runtime.now() - moment), **details))

    def _common(self, live: LiveClaim) -> dict[str, Any]:
        claim = live.claim
        return {
            "store": self._store, "name": claim.name, "claim": claim.id, "kind": claim.kind, "owner": claim.owner, "ttl": claim.ttl,
        }  # fmt: skip

    def _tell_asked(self, live: LiveClaim, moment: float) -> None:
        story = self._stories[live.claim.id] = Story(self._common(live), moment)
        self._tell(events.Asked, moment, **story.common)

    def _tell_waiting(self, live: LiveClaim, moment: float, ahead: int, context: Context | None) -> None:
        story = self._stories.get(live.claim.id)
        if story is None or story.waiting or story.token is not None:
            return
        self._tell_answered(moment)
        story.waiting = True
        self._tell(events.Waiting, moment, ahead=ahead, context=context, **story.common)

    def _tell_behind(self, live: LiveClaim, moment: float, who: str) -> None:
        story = self._stories.get(live.claim.id)
        if story is not None and story.token is None:
            story.behind = who

    def _tell_granted(self, live: LiveClaim, moment: float) -> None:
        story = self._stories.get(live.claim.id)
        if story is None or story.token is not None:
            return
        self._tell_answered(moment)
        story.token, story.granted = live.token, moment
        self._tell(
            events.Granted, moment, token=live.token, took=moment - story.asked, waited=story.waiting, behind=story.behind,
            **story.common,
        )  # fmt: skip

    def _tell_renewed(self, live: LiveClaim, moment: float, sent: float, margin: float, late_for: float | None) -> None:
        story = self._stories.get(live.claim.id)
        common = self._common(live) if story is None else story.common
        told = {"token": live.token, "took": moment - sent, "margin": margin, **common}
        if story is not None and story.token is not None:
            self._tell(events.Renewed, moment, **told)
        if late_for is not None:
            self._tell(events.RenewalLate, moment, usual=late_for, **told)

    def _tell_lost(self, live: LiveClaim, moment: float) -> None:
        story = self._stories.get(live.claim.id)
        if live.loss_told or live.lost is None or (story is not None and story.token is None):
            return  # told, or lost before it was told to hold: then it ends as one that waited
        live.loss_told = True
        self._stories.pop(live.claim.id, None)
        common = self._common(live) if story is None else story.common
        held = None if story is None or story.token is None else moment - story.granted
        lost = live.lost
        self._tell(
            events.Lost, moment, token=live.token, held=held, reason=lost.reason, cause=lost.cause, detail=lost.detail, **common,
        )  # fmt: skip

    def _tell_ended(
        self, live: LiveClaim, moment: float, state: object, why: type | None, let_go: float | None
    ) -> None:
        story = self._stories.get(live.claim.id)
        if story is None:
            return
        if story.token is not None and live.lost is not None:
            self._tell_lost(live, moment)
        elif story.token is not None:
            end: End = "unconfirmed" if state is RELEASING else "released" if why is None else "cut short"
            end = "handed over" if live.detached else end
            self._end(story, moment if let_go is None else let_go, end=end)
        else:
            reason = why_withdrawn(live, why)
            if reason == "unavailable":
                self._tell_silent(moment, "an acquire got no answer")
            self._end(story, moment, why=reason)

    def _end(self, story: Story, moment: float, *, why: Withdrawal = "cancelled", end: End = "cut short") -> None:
        self._stories.pop(story.common["claim"], None)
        if story.token is not None:
            self._tell(events.Released, moment, token=story.token, held=moment - story.granted, end=end, **story.common)
        else:
            took = moment - story.asked
            self._tell(
                events.Withdrawn, moment, took=took, waited=story.waiting, why=why, behind=story.behind, **story.common
            )

    def _tell_over(self, moment: float, why: Withdrawal, end: End) -> None:
        for story in list(self._stories.values()):
            self._end(story, moment, why=why, end=end)

    def _tell_silent(self, moment: float, problem: str) -> None:
        self.silent = True
        if self._silent_since is None:
            self._silent_since = moment
            self._tell(events.StoreSilent, moment, store=self._store, problem=problem)

    def _tell_answered(self, moment: float) -> None:
        if self._silent_since is not None:
            since, self._silent_since = self._silent_since, None
            self.silent = False
            self._tell(events.StoreBack, moment, store=self._store, silent=moment - since)

    def _tell_evicted(self, moment: float, name: str, owner: str, holders: int, token: int | None) -> None:
        self._tell(events.Evicted, moment, store=self._store, name=name, owner=owner, holders=holders, token=token)


def usual_margin(live: LiveClaim) -> float:
    """What is left of a lease when a renewal that is sent when it is due is answered at once; near its max_hold all that there is."""
    left = min(live.limit, live.ceiling.until) - live.runtime.now()
    return min(live.claim.ttl * (TRUSTED - 1 / RENEWALS_PER_TTL), left)


def why_withdrawn(live: LiveClaim, why: type | None) -> Withdrawal:
    """Why a claim went that never held, by the error that its caller got."""
    if why is None:
        # A try that found no room was never confirmed; what was is gone from the line.
        return "busy" if not live.ends else "place lost"
    kinds: tuple[tuple[type, Withdrawal], ...] = (
        (AcquireTimeout, "timeout"), (LineFull, "line full"), (ClientClosed, "closed"), (BackendUnavailable, "unavailable"),
        (WouldDeadlock, "refused"),
    )  # fmt: skip
    return next((reason for kind, reason in kinds if issubclass(why, kind)), "cancelled")


class TellingKeeper(Keeper):
    """The keeper of a client whose every claim is told of.

    A kind of its own, so that the way of an acquire has no hook in it, and no look for one, where nobody listens.
    """

    stream: Stream

    def __init__(self, *arguments: Any) -> None:
        self._wonders: dict[str, list[LiveClaim]] = {}
        """Claims that wait, by name, whose listener wants to know for whom."""
        super().__init__(*arguments)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # No `weakref.finalize`: that would keep the listeners, and with one that knows its client the client, for ever.
        if not ending():
            self.stream.finish()

    def reset(self) -> None:
        super().reset()
        self._wonders = {}
        self.stream.forked()

    def note(self, live: LiveClaim) -> None:
        super().note(live)
        # After it stands in the books: whatever strikes from here on, it is struck from there.
        self.stream.asked(live)

    def line_up(self, live: LiveClaim, stands: Waiting) -> None:
        if live.told:
            self.stream.waiting(live, stands)
            if self.stream.wants_holders:
                self._wonders.setdefault(live.claim.name, []).append(live)
        super().line_up(live, stands)
        if self._wonders:
            self._worker.wake()

    def add(self, live: LiveClaim) -> None:
        super().add(live)
        live.let_go = None
        if live.token is not None and live.told:
            self.stream.granted(live)

    def drop(self, live: LiveClaim) -> None:
        live.let_go = self._runtime.now()
        super().drop(live)

    def strike(self, claim: Any) -> None:
        live = self.books.get(claim.id)
        # Before it is struck: cut in between, it is struck and told once more, and a story has one end.
        if live is not None and live.told:
            self.stream.ended(live)
        super().strike(claim)

    async def _look_round(self) -> float:
        plan = await super()._look_round()
        self.stream.nudge()
        if self._wonders:
            wonders, self._wonders = self._wonders, {}
            try:
                self._runtime.spawn(lambda: self._find_holders(wonders), "lockline-events-look")
            except RuntimeError:
                pass  # no thread to be had: then that is not told
        return plan

    async def _find_holders(self, wonders: dict[str, list[LiveClaim]]) -> None:
        for name, waiting in list(wonders.items())[:NAMES_AT_ONCE]:
            try:
                line = await self._backend.look(name, self._runtime.now() + A_LOOK)
            except LocklineError:
                continue
            who = ", ".join(printable(holder.owner) for holder in line.holders[:3])
            for live in waiting:
                if who and live.state is WAITING:
                    self.stream.behind(live, who)


def keeper_for(stream: Stream | None) -> type[Keeper]:
    """The keeper that tells as much as somebody listens to."""
    return Keeper if stream is None or not stream.whole else TellingKeeper
