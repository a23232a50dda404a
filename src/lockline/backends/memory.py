"""`memory:` is the one rule in plain Python: the reference model, for the threads and tasks of one process.

Clients that name the same `memory:room` share its lines; a plain `memory:` is the room without a name.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..core.backend import Finding, Findings
from ..core.claim import DETACHED, Claim, Gone, Grant, Line, Record, Standing, Waiting
from ..core.rule import admitted
from ..core.waiting import Hints, begun
from ..core.weakly import weakly
from ..guarantees import Guarantees
from ..runtime import Runtime
from ..runtime.fairness import Breather
from ..runtime.fork import tell_after_fork
from ..runtime.section import Inside, Section
from .memory_keeping import Keeps
from .watchers import Watchers

T = TypeVar("T")

GUARANTEES = Guarantees(
    exclusion="process",
    fifo=True,
    push=True,
    token_survives=frozenset({"release", "expiry"}),
    tolerates="Threads and tasks of one process exclude each other; another process knows nothing of them.",
)


class Stood:
    """One claim in its line."""

    __slots__ = ("arrived", "capacity", "claim", "expires", "granted", "tell", "ticket", "weight")

    def __init__(self, claim: Claim, ticket: int, now: float, tell: Callable[[str], None]) -> None:
        self.claim = claim
        self.ticket = ticket
        self.arrived = now
        self.expires = now + claim.ttl
        self.tell = tell
        self.granted: float | None = None
        """When it began to hold, which it has heard by then."""
        self.weight = claim.weight
        self.capacity = claim.capacity


class _Overtaken(Exception):
    """While this thread's step stood still, a signal handler or finaliser on top of it made one of its own."""


class Room:
    """The lines of one process under one name. Every method is one atomic step.

    A step works on a line that nobody changes and ends by putting another in its place, in one instruction: cut short
    anywhere it has happened or not. A signal handler or a `__del__` that strikes this thread in the middle of a step makes
    its own at once, and the one under it begins again.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.forked()
        tell_after_fork(self)

    def forked(self) -> None:
        """A child starts empty: what stood here is the parent's."""
        self._lines: dict[str, list[Stood]] = {}
        self._tickets = itertools.count(1)
        self._alone = Section()
        self._changes = 0
        self._keeps = Keeps()
        self._watchers: Watchers[tuple[Callable[[str], None], str]] = Watchers()

    def _step(self, work: Callable[..., T], *args: Any) -> T:
        while True:
            try:
                return self._alone(work, *args)
            except Inside:
                return work(*args)
            except _Overtaken:
                pass

    def _put(self, name: str, line: list[Stood], seen: int) -> int:
        # No call between the comparison and the last line: there is no moment for a handler.
        if self._changes != seen:
            raise _Overtaken
        self._changes = seen + 1
        self._lines[name] = line
        if not line:
            self._lines.pop(name, None)
        if self._watchers.watched:
            for tell, watcher in self._watchers.take(name):
                tell(watcher)
        return seen + 1

    def watch(self, name: str, tell: Callable[[str], None], watcher: str) -> None:
        self._step(self._watchers.add, name, (tell, watcher))
        tell(begun(watcher))

    def unwatch(self, tell: Callable[[str], None], watcher: str) -> None:
        self._step(self._watchers.discard, (tell, watcher))

    def _live(self, name: str) -> tuple[list[Stood], int]:
        """The line without those whose ttl has run out, and as of which change; whoever gets room by that is told."""
        seen = self._changes
        line = self._lines.get(name)
        if not line:
            return [], seen
        now = self.now()
        untold = False
        for stood in line:
            if stood.expires <= now:
                line = [stood for stood in line if stood.expires > now]
                seen = self._put(name, line, seen)
                untold = True
                break
            untold = untold or stood.granted is None
        if untold:
            # Also one whom the step that let it in could not tell, because it was cut short.
            self._tell_holders(line)
        return line, seen

    def _tell_holders(self, line: list[Stood]) -> None:
        for stood in line[: admitted(line)]:
            if stood.granted is None:
                stood.tell(stood.claim.id)
                stood.granted = self.now()

    @staticmethod
    def _find(line: list[Stood], claim: Claim) -> int | None:
        for at, stood in enumerate(line):
            if stood.claim.id == claim.id:
                return at
        return None

    def enter(self, claim: Claim, wait: bool, tell: Callable[[str], None]) -> Grant | Waiting | None:
        return self._step(self._enter, claim, wait, tell)

    def _enter(self, claim: Claim, wait: bool, tell: Callable[[str], None]) -> Grant | Waiting | None:
        line, seen = self._live(claim.name)
        at = self._find(line, claim)
        if at is None:
            stood = Stood(claim, next(self._tickets), self.now(), tell)
            at = len(line)
            line = [*line, stood]
            holds = at < admitted(line)
            if not holds and not wait:
                return None
            # It hears of it by this very answer.
            stood.granted = stood.arrived if holds else None
            self._put(claim.name, line, seen)
            if holds:
                return Grant(stood.ticket)
        return self._stands(line, at)

    def place(self, claim: Claim) -> Grant | Waiting | Gone:
        return self._step(self._place, claim)

    def _place(self, claim: Claim) -> Grant | Waiting | Gone:
        line, _ = self._live(claim.name)
        at = self._find(line, claim)
        return Gone() if at is None else self._stands(line, at)

    @staticmethod
    def _stands(line: list[Stood], at: int) -> Grant | Waiting:
        """Where the claim at that place stands; it has to look again when the first one ahead would expire."""
        if at < admitted(line):
            return Grant(line[at].ticket)
        first = min(stood.expires for stood in line[:at])
        return Waiting(at, first, ticket=line[at].ticket, behind=line[at - 1].claim.id)

    def leave(self, claim: Claim, heir: str = "") -> bool:
        return self._step(self._leave, claim, heir)

    def _leave(self, claim: Claim, heir: str) -> bool:
        line, seen = self._live(claim.name)
        at = self._find(line, claim)
        if at is None:
            return False
        rest = line[:at] + line[at + 1 :]
        if heir and at < len(rest) and rest[at].claim.id == heir:
            # It knows, before anybody here could tell it.
            rest[at].granted = self.now()
        self._put(claim.name, rest, seen)
        if rest:
            self._tell_holders(rest)
        return True

    def renew(self, claim: Claim) -> Gone | None:
        return self._step(self._renew, claim)

    def _renew(self, claim: Claim) -> Gone | None:
        line, _ = self._live(claim.name)
        at = self._find(line, claim)
        if at is None:
            return Gone()
        stood = line[at]
        stood.expires = max(stood.expires, self.now() + claim.ttl)
        if claim.weight < stood.weight:
            stood.weight, stood.claim = claim.weight, claim
            self._tell_holders(line)
        return None

    def last(self, claim: Claim, ttl: float) -> bool:
        return self._step(self._last, claim, ttl)

    def _last(self, claim: Claim, ttl: float) -> bool:
        line, _ = self._live(claim.name)
        at = self._find(line, claim)
        if at is not None:
            line[at].expires = self.now() + ttl
            for waits in line[admitted(line) :]:
                # It has planned to look later.
                waits.tell(waits.claim.id)
        return at is not None

    def hand_over(self, old: str, claim: Claim, tell: Callable[[str], None]) -> Grant | Waiting | Gone:
        return self._step(self._hand_over, old, claim, tell)

    def _hand_over(self, old: str, claim: Claim, tell: Callable[[str], None]) -> Grant | Waiting | Gone:
        line, seen = self._live(claim.name)
        at = self._find(line, claim)
        if at is not None:
            return Grant(line[at].ticket)
        holders = admitted(line)
        before = next((stood for stood in line if stood.claim.id == old), None)
        if before is None:
            return Gone()
        if before not in line[:holders]:
            return Waiting(0)
        claim = claim._replace(weight=before.weight, capacity=before.capacity)
        new = Stood(claim, next(self._tickets), self.now(), tell)
        new.granted = new.arrived
        # Others in their turn: what stands there is changed by nobody, so that a step that is cut short has not happened.
        behind = [copy.copy(stood) for stood in line[holders:]]
        for stood in behind:
            stood.ticket = next(self._tickets)
        self._put(claim.name, [*(stood for stood in line[:holders] if stood is not before), new, *behind], seen)
        if new.expires < before.expires:
            for stood in behind:  # They would look again only when the old one was to expire.
                stood.tell(stood.claim.id)
        return Grant(new.ticket)

    def look(self, name: str) -> Line:
        return self._step(self._look, name)

    def _look(self, name: str) -> Line:
        line, _ = self._live(name)
        holders = admitted(line)
        now = self.now()
        return Line(name, tuple(_seen(stood, at < holders, now) for at, stood in enumerate(line)))

    def names(self, prefix: str) -> list[str]:
        return self._step(self._names, prefix)

    def _names(self, prefix: str) -> list[str]:
        return sorted(name for name in list(self._lines) if name.startswith(prefix) and self._live(name)[0])

    def evict(self, name: str, token: int | None) -> int:
        return self._step(self._evict, name, token)

    def _evict(self, name: str, token: int | None) -> int:
        line, seen = self._live(name)
        victims = [stood for stood in line[: admitted(line)] if token is None or stood.ticket == token]
        rest = [stood for stood in line if stood not in victims]
        self._put(name, rest, seen)
        self._tell_holders(rest)
        for victim in victims:
            victim.tell(victim.claim.id)
        return len(victims)

    def kept(self, name: str, what: str, token: int, ttl: float) -> Record:
        return self._step(self._keeps.kept, name, what, token, ttl)

    def keep(self, name: str, what: str, value: bytes, token: int, ttl: float) -> bool:
        return self._step(self._keeps.keep, name, what, value, token, ttl)


def _tell_nobody(claim_id: str) -> None:
    """A place that is kept for somebody has nobody to be told of its end."""


def _seen(stood: Stood, holds: bool, now: float) -> Standing:
    claim = stood.claim
    waited = 0.0 if stood.granted is None else stood.granted - stood.arrived
    return Standing(
        id=claim.id, owner=claim.owner, kind=claim.kind, token=stood.ticket, holds=holds, weight=stood.weight,
        capacity=claim.capacity, ttl=claim.ttl, remaining=max(0.0, stood.expires - now), enqueued_at=claim.since,
        granted_at=claim.since + waited if holds else None, meta=json.loads(claim.meta) if claim.meta else None,
    )  # fmt: skip


class MemoryBackend:
    """One client of a room."""

    guarantees = GUARANTEES
    reader = None

    def __init__(self, room: Room, runtime: Runtime, url: str) -> None:
        self.url = url
        self._room = room
        self._runtime = runtime
        self._breather = Breather(runtime)

    def report_to(self, hints: Hints) -> None:
        # What stands in a room stays there until somebody comes by; its client does not.
        self._heard = weakly(hints.heard)

    def forked(self) -> None:
        """Nothing here is the client's own; the room forgets by itself."""

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        await self._breather.breathe()
        return self._room.enter(claim, wait, self._heard)

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        return self._room.place(claim)

    async def leave(self, claim: Claim, until: float, *, heir: str = "") -> bool:
        return self._room.leave(claim, heir)

    async def leave_all(self, claims: Sequence[Claim], until: float) -> list[bool]:
        return [await self.leave(claim, until) for claim in claims]

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | None]:
        return [self._room.renew(claim) for claim in claims]

    async def look(self, name: str, until: float) -> Line:
        await self._breather.breathe()
        return self._room.look(name)

    async def look_many(self, names: Sequence[str], until: float) -> Sequence[Line]:
        await self._breather.breathe()
        return [self._room.look(name) for name in names]

    async def list(self, prefix: str, until: float) -> list[str]:
        await self._breather.breathe()
        return self._room.names(prefix)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        return self._room.evict(name, token)

    async def kept(self, name: str, what: str, until: float, token: int = 0, ttl: float = 0.0) -> Record:
        await self._breather.breathe()
        return self._room.kept(name, what, token, ttl)

    async def keep(self, name: str, what: str, value: bytes, token: int, ttl: float, until: float) -> bool:
        return self._room.keep(name, what, value, token, ttl)

    async def hand_over(self, old: str, claim: Claim, until: float) -> Grant | Waiting | Gone:
        tell = _tell_nobody if claim.id.startswith(DETACHED) else self._heard
        return self._room.hand_over(old, claim, tell)

    async def last(self, claim: Claim, ttl: float, until: float) -> bool:
        return self._room.last(claim, ttl)

    async def watch(self, name: str, watcher: str, until: float) -> bool:
        self._room.watch(name, self._heard, watcher)
        return True

    async def unwatch(self, watcher: str) -> None:
        self._room.unwatch(self._heard, watcher)

    async def attend(self) -> None:
        """Whoever changes a line tells those concerned."""

    async def examine(self, until: float) -> Findings:
        return [Finding("warning", "locks live in this process only", "use local: between processes")]

    async def close(self) -> None:
        """There is nothing to let go of."""


# Module state with a reason: clients of one process share lines, so something of the process has to hold them.
_rooms: dict[str, Room] = {}


def connect(target: str, runtime: Runtime, **options: Any) -> MemoryBackend:
    """The backend for `memory:` or `memory:room`."""
    if options:
        raise TypeError(f"unexpected keyword: {', '.join(options)}")
    # One instruction: of two threads that come first, both get the same.
    room = _rooms.get(target) or _rooms.setdefault(target, Room(runtime.now))
    return MemoryBackend(room, runtime, target)
