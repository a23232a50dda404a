"""The values that travel between core and backends: a claim, what became of it, and the line it stands in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from ..errors import BackendUnavailable

Kind = Literal["lock", "rlock", "read", "write", "permit"]

WHOLE: Final = 1 << 20
"""The capacity of a read-write line: a reader weighs 1, a writer all of it."""


DETACHED: Final = "detached-"
"""What the id of a claim begins with that belongs to no client: it keeps a place for whoever comes with its ticket."""


class Claim(NamedTuple):
    """One party's wish for a place in a line. A tuple, because the fast path makes one per acquire."""

    name: str
    id: str
    """Unique for each attempt, so that a repeated request does its work once."""
    owner: str
    kind: Kind
    weight: int
    capacity: int
    ttl: float
    since: float
    """Wall-clock time of arrival, for people to read; nothing is decided by it."""
    meta: str
    """JSON of what the caller wants others to see, or an empty string."""
    stays: bool = False
    """Also where a store knows of its client's death: it then stands until its ttl is over."""
    kept_for: float = 0.0
    """Seconds from the grant for which the name is to be held at least, also after a release."""


class Grant(NamedTuple):
    """The claim holds; its ticket is now its fencing token."""

    token: int
    sent: float | None = None
    """When the request that won it was sent, where that was neither the `enter` nor a renewal: validity counts from there."""


class Waiting(NamedTuple):
    """The claim stands in the line; `ahead` claims were before it when the store looked."""

    ahead: int
    look_by: float = 0.0
    """When it has to be looked at again at the latest, whether a hint came or not; at once, if nothing is said."""
    stands: bool = True
    """False where a store keeps no line: nothing is there to be renewed, and each look is another try."""
    ticket: int = 0
    """Its token once it holds, where the store says it now."""
    behind: str = ""
    """The id of the claim that came directly before it, where the store says so: if that is ours, it can hand its turn on."""


class Ceiling:
    """The moment after which no claim of one session may be trusted, whatever its own ttl says.

    Where a store ties claims to a session of the client, the session can end before a long ttl does. The backend raises
    this moment whenever the store confirms the session, and drops it when the session has ended.
    """

    __slots__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until = until


class Gone(NamedTuple):
    """The store has no such claim (any more)."""

    reason: Literal["expired", "evicted", "taken"] | None = None
    """Why, where the store knows; otherwise the holder's own deadline tells."""


class Record(NamedTuple):
    """What a store keeps beside a line, and what time it is there."""

    now: float
    """The store's own time, in seconds since 1970."""
    value: bytes | None = None
    token: int = 0
    """Under which it was written."""
    written: float = 0.0
    expires: float = 0.0
    step: int = 0
    """The store's count of its own changes at this look, where its time is less exact than that; otherwise 0."""
    written_step: int = 0
    """The same of the change that wrote it."""
    doubt: float = 0.0
    """The store's time may be so much later than `now`, where it is not known exactly."""

    def came_after(self, look: Record) -> bool:
        """Whether it was written after that look, by the store's own order."""
        return self.written_step > look.step if self.step else self.written >= look.now


class Unanswered(NamedTuple):
    """Too few servers answered to say whether the claim lives: not loss until its own deadline."""

    problem: BackendUnavailable
    """What a caller is told who asked for this renewal himself."""


RenewResults = Sequence[Gone | Unanswered | None]
"""What became of claims that were to be renewed; None for each that lives on."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One claim as others see it."""

    id: str
    owner: str
    kind: str
    token: int
    """Its ticket, which is its fencing token once it holds."""
    holds: bool
    weight: int
    capacity: int
    ttl: float
    remaining: float
    """Seconds until the store would drop it, if nobody renewed it."""
    enqueued_at: float
    """When it entered the line: seconds since 1970, by the store's clock where the store has one."""
    granted_at: float | None
    """When it began to hold, by the same clock; None while it waits. Which stores know the moment exactly: docs/guarantees.md."""
    meta: Mapping[str, Any] | None = None

    @property
    def began(self) -> float:
        """When it began to do what it does now: to hold, or else to wait."""
        return self.enqueued_at if self.granted_at is None else self.granted_at

    @property
    def detached(self) -> bool:
        """Whether nobody has it in hand: its place is kept for whoever attaches with the ticket."""
        return self.id.startswith(DETACHED)


@dataclass(frozen=True, slots=True)
class Line:
    """All claims on one name, in order of arrival."""

    name: str
    claims: tuple[Standing, ...] = ()

    @property
    def holders(self) -> tuple[Standing, ...]:
        """Those whose turn it is."""
        return tuple(claim for claim in self.claims if claim.holds)

    @property
    def waiters(self) -> tuple[Standing, ...]:
        """Those who wait, the next one first."""
        return tuple(claim for claim in self.claims if not claim.holds)
