"""`memory:` is the one rule in plain Python: the reference model, for the threads and tasks of one process.

Clients that name the same `memory:room` share its lines; a plain `memory:` is the room without a name.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ..core.backend import Finding, Findings
from ..core.claim import Claim, Gone, Grant, Line, Standing, Waiting
from ..core.fork import tell_after_fork
from ..core.rule import admitted
from ..core.runtime import Runtime
from ..guarantees import Guarantees

GUARANTEES = Guarantees(
    exclusion="process",
    fifo=True,
    push=True,
    token_survives=frozenset({"release", "expiry"}),
    tolerates="Threads and tasks of one process exclude each other; another process knows nothing of them.",
)


class Stood:
    """One claim in its line."""

    __slots__ = ("capacity", "claim", "expires", "since", "tell", "ticket", "weight")

    def __init__(self, claim: Claim, ticket: int, expires: float, tell: Callable[[str], None]) -> None:
        self.claim = claim
        self.ticket = ticket
        self.expires = expires
        self.tell = tell
        self.weight = claim.weight
        self.capacity = claim.capacity
        self.since = claim.since


class Room:
    """The lines of one process under one name. Every method is one atomic step."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.forked()
        tell_after_fork(self)

    def forked(self) -> None:
        """A child starts empty: what stood here is the parent's."""
        self._lines: dict[str, list[Stood]] = {}
        self._tickets = itertools.count(1)
        self._mutex = threading.Lock()

    def _live(self, name: str) -> list[Stood]:
        """The line without those whose ttl has run out; whoever gets room by that is told."""
        line = self._lines.get(name, [])
        now = self.now()
        if any(stood.expires <= now for stood in line):
            return self._without(name, lambda stood: stood.expires <= now)
        return line

    def _without(self, name: str, gone: Callable[[Stood], bool]) -> list[Stood]:
        line = self._lines.get(name, [])
        held = {stood.claim.id for stood in line[: admitted(line)]}
        rest = [stood for stood in line if not gone(stood)]
        if rest:
            self._lines[name] = rest
        else:
            self._lines.pop(name, None)
        self._tell_new_holders(rest, held)
        return rest

    def _tell_new_holders(self, line: list[Stood], held: set[str]) -> None:
        for stood in line[: admitted(line)]:
            if stood.claim.id not in held:
                stood.tell(stood.claim.id)

    @staticmethod
    def _find(line: list[Stood], claim: Claim) -> int | None:
        return next((at for at, stood in enumerate(line) if stood.claim.id == claim.id), None)

    def enter(self, claim: Claim, wait: bool, tell: Callable[[str], None]) -> Grant | Waiting | None:
        with self._mutex:
            line = self._live(claim.name)
            at = self._find(line, claim)
            if at is None:
                stood = Stood(claim, next(self._tickets), self.now() + claim.ttl, tell)
                if not wait and admitted([*line, stood]) <= len(line):
                    return None
                at = len(line)
                line = self._lines[claim.name] = [*line, stood]
            return Grant(line[at].ticket) if at < admitted(line) else Waiting(at)

    def standing(self, claim: Claim) -> Grant | Waiting | Gone:
        with self._mutex:
            line = self._live(claim.name)
            at = self._find(line, claim)
            if at is None:
                return Gone()
            return Grant(line[at].ticket) if at < admitted(line) else Waiting(at)

    def next_change(self, claim: Claim) -> float:
        """When the first claim ahead would expire."""
        with self._mutex:
            line = self._lines.get(claim.name, [])
            at = self._find(line, claim) or 0
            return min((stood.expires for stood in line[:at]), default=float("inf"))

    def leave(self, claim: Claim) -> bool:
        with self._mutex:
            there = self._find(self._live(claim.name), claim) is not None
            if there:
                self._without(claim.name, lambda stood: stood.claim.id == claim.id)
            return there

    def renew(self, claim: Claim) -> Gone | None:
        with self._mutex:
            line = self._live(claim.name)
            at = self._find(line, claim)
            if at is None:
                return Gone()
            stood = line[at]
            stood.expires = max(stood.expires, self.now() + claim.ttl)
            if claim.weight < stood.weight:
                held = {other.claim.id for other in line[: admitted(line)]}
                stood.weight, stood.claim = claim.weight, claim
                self._tell_new_holders(line, held)
            return None

    def look(self, name: str) -> Line:
        with self._mutex:
            line = self._live(name)
            holders = admitted(line)
            now = self.now()
            return Line(name, tuple(_seen(stood, at < holders, now) for at, stood in enumerate(line)))

    def names(self, prefix: str) -> list[str]:
        with self._mutex:
            return sorted(name for name in list(self._lines) if name.startswith(prefix) and self._live(name))

    def evict(self, name: str, token: int | None) -> int:
        with self._mutex:
            line = self._live(name)
            victims = [stood for stood in line[: admitted(line)] if token is None or stood.ticket == token]
            self._without(name, lambda stood: stood in victims)
            for victim in victims:
                victim.tell(victim.claim.id)
            return len(victims)


def _seen(stood: Stood, holds: bool, now: float) -> Standing:
    claim = stood.claim
    return Standing(
        id=claim.id, owner=claim.owner, kind=claim.kind, token=stood.ticket, holds=holds, weight=stood.weight,
        capacity=claim.capacity, ttl=claim.ttl, remaining=max(0.0, stood.expires - now), since=stood.since,
        meta=json.loads(claim.meta) if claim.meta else None,
    )  # fmt: skip


class MemoryBackend:
    """One client of a room."""

    guarantees = GUARANTEES

    def __init__(self, room: Room, runtime: Runtime, url: str) -> None:
        self.url = url
        self._room = room
        self._runtime = runtime
        self.forked()

    def forked(self) -> None:
        self._mailbox = self._runtime.mailbox()
        self._news: list[str] = []
        self._interrupted = False

    def _told(self, claim_id: str) -> None:
        if not self._mailbox.deliver(claim_id):
            self._news.append(claim_id)

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        return self._room.enter(claim, wait, self._told)

    async def turn(self, claim: Claim, until: float) -> Grant | Gone | None:
        # Before the first look: a hint that comes after it has a place to lie.
        self._mailbox.open(claim.id)
        while not self._interrupted:
            answer = self._room.standing(claim)
            if not isinstance(answer, Waiting):
                self._mailbox.close(claim.id)
                return answer
            if self._runtime.now() >= until:
                return None
            await self._mailbox.wait(claim.id, min(until, self._room.next_change(claim)))
        return None

    async def leave(self, claim: Claim, until: float) -> bool:
        self._mailbox.close(claim.id)
        return self._room.leave(claim)

    async def leave_all(self, claims: Sequence[Claim], until: float) -> list[bool]:
        return [await self.leave(claim, until) for claim in claims]

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | None]:
        return [self._room.renew(claim) for claim in claims]

    async def look(self, name: str, until: float) -> Line:
        return self._room.look(name)

    async def list(self, prefix: str, until: float) -> list[str]:
        return self._room.names(prefix)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        return self._room.evict(name, token)

    async def news(self) -> Collection[str]:
        news, self._news = self._news, []
        return news

    async def examine(self, until: float) -> Findings:
        return [Finding("warning", "locks live in this process only", "use local: between processes")]

    def nudge(self, claim_id: str) -> None:
        self._mailbox.deliver(claim_id)

    def interrupt(self) -> None:
        self._interrupted = True
        self._mailbox.deliver_all()

    async def close(self) -> None:
        self._interrupted = True


# Module state with a reason: clients of one process share lines, so something of the process has to hold them.
_rooms: dict[str, Room] = {}
_rooms_mutex = threading.Lock()


def connect(target: str, runtime: Runtime, **options: Any) -> MemoryBackend:
    """The backend for `memory:` or `memory:room`."""
    if options:
        raise TypeError(f"unexpected keyword: {', '.join(options)}")
    with _rooms_mutex:
        room = _rooms.setdefault(target, Room(runtime.now))
    return MemoryBackend(room, runtime, target)
