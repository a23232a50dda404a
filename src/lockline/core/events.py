"""What happens to a client's claims, as values: each claim's story from `asked` to its one end, and what its store does.

A story is `Asked`, perhaps `Waiting`, and then either `Withdrawn` or `Granted`, any number of `Renewed` and `RenewalLate`, and
`Released` or `Lost`. Events of one claim are told in this order, each at most once but for renewals. Between claims the moment
`at` counts: a release is told when the store has answered, and the next holder may have gone on by then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from ..errors import Cause, Reason

Withdrawal = Literal[
    "timeout", "busy", "cancelled", "line full", "place lost", "unavailable", "closed", "forked", "refused"
]
"""Why a claim went without having held: the caller's time was over; a try found no room; the caller was cancelled or interrupted;
too many waited; the store had forgotten its place; the store gave no answer; the client was closed; this is a forked
child; it would have waited for itself."""
End = Literal["released", "handed over", "unconfirmed", "cut short", "forked"]
"""How a hold ended: by a release that the store confirmed, or by a `detach`; by one that it did not (it is repeated in the background); by an
exception on the way into or out of the caller's hands; because this is a forked child, in which nothing is held."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened."""

    what: ClassVar[str] = "event"
    at: float
    """When, as wall-clock time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreEvent(Event):
    """Something happened at a store."""

    store: str
    """Its URL, without secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimEvent(StoreEvent):
    """Something happened to one claim of this client."""

    name: str
    """The lock's name, as its users chose it: escape it before it reaches a terminal or a page."""
    claim: str
    """Unique for each attempt: the events with the same one are one story."""
    kind: str
    owner: str
    ttl: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(ClaimEvent):
    """A claim goes out. An acquire whose store falls silent, or forgets, asks again with a claim of its own."""

    what = "asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(ClaimEvent):
    """It stands in the line."""

    what = "waiting"
    ahead: int
    """How many were before it, as far as the store says."""
    context: Context | None = field(default=None, repr=False, compare=False)
    """The caller's, where a listener wants it: a tracer finds the span there in which the lock was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted(ClaimEvent):
    """It holds."""

    what = "granted"
    token: int
    took: float
    """Seconds since it was asked for."""
    waited: bool
    """Whether it had to stand in the line."""
    behind: str = ""
    """Who held meanwhile, where a listener wants to know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed(ClaimEvent):
    """The store confirmed it again."""

    what = "renewed"
    token: int
    took: float
    """Seconds from the request to its answer."""
    margin: float
    """Seconds that were left when the answer came: how near it was to being lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenewalLate(ClaimEvent):
    """A renewal was confirmed with less than half of its usual margin left; told after its `Renewed`."""

    what = "renewal late"
    token: int
    took: float
    margin: float
    usual: float
    """The margin of a renewal that is sent and answered in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost(ClaimEvent):
    """It ended before its holder let go."""

    what = "lost"
    token: int
    held: float | None
    """For how long it had held; None where nobody listened when it was granted."""
    reason: Reason
    cause: Cause | None
    detail: str
    """Why, in words, with the cure where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(ClaimEvent):
    """Its holder let go; `at` is when."""

    what = "released"
    token: int
    held: float
    end: End


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn(ClaimEvent):
    """It went without having held."""

    what = "withdrawn"
    took: float
    waited: bool
    why: Withdrawal
    behind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted(StoreEvent):
    """This client took a lock away from whoever held it; the victims' own clients tell `Lost`."""

    what = "evicted"
    name: str
    owner: str
    """Who did it."""
    holders: int
    """How many held."""
    token: int | None
    """The only holder that was meant, if it was said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSilent(StoreEvent):
    """The store does not answer, or says that it cannot serve."""

    what = "store silent"
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBack(StoreEvent):
    """It answers again."""

    what = "store back"
    silent: float
    """For how many seconds it had not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceRefused(Event):
    """A fence said no to a holder that was overtaken: its write was not done."""

    what = "fence refused"
    resource: str
    lock: str
    offered: int | str
    highest: int | str
    """What it had seen before; 0 if the offer had never entered."""


Listener = Callable[[Event], object]
