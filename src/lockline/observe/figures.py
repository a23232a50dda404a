"""What the events come to in figures: the same for OpenTelemetry and Prometheus, each by its own conventions.

A lock's name is never a label: names are many, and each would be a series for ever. What a program wants to tell apart it says by
`group`, a function from a name to one of a few words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from ..core.events import Event, FenceRefused, Granted, Lost, Released, Renewed, Waiting, Withdrawn

Labels = Mapping[str, str]
Group = Callable[[str], str]

MOST_GROUPS: Final = 100
"""Groups that are told apart; what comes after them is "other", so that a function that gives the name itself does no harm."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its name with dots, and what a label of it may say."""

    name: str
    kind: Literal["histogram", "counter", "gauge"]
    unit: str
    help: str
    labels: tuple[str, ...] = ()


ACQUIRE: Final = Figure(
    "lockline.acquire.duration", "histogram", "s", "From asking for a lock to having it, or not.", ("kind", "outcome")
)
HOLD: Final = Figure("lockline.hold.duration", "histogram", "s", "How long locks were held.", ("kind", "outcome"))
RENEW: Final = Figure("lockline.renew.duration", "histogram", "s", "From a renewal to its answer.", ("kind",))
MARGIN: Final = Figure(
    "lockline.lease.margin", "histogram", "s", "Time that was left when a renewal was acknowledged.", ("kind",)
)
LOST: Final = Figure("lockline.lease.lost", "counter", "{lease}", "Leases that were lost.", ("kind", "reason", "cause"))
REJECTED: Final = Figure("lockline.fence.rejected", "counter", "{write}", "Writes that a fence refused.")
WAITERS: Final = Figure("lockline.waiters", "gauge", "{claim}", "Claims of this process that wait.", ("kind",))
HOLDERS: Final = Figure("lockline.holders", "gauge", "{lease}", "Leases that this process holds.", ("kind",))
FIGURES: Final = (ACQUIRE, HOLD, RENEW, MARGIN, LOST, REJECTED, WAITERS, HOLDERS)
BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
"""From a round trip to a store nearby to a job of half an hour."""


class Instruments(Protocol):
    """Where figures go."""

    def record(self, figure: Figure, value: float, labels: Labels) -> None:
        """One more value of a histogram, or so much more of a counter, or so much up or down of a gauge."""


class Groups:
    """Which group a name belongs to, of a few."""

    def __init__(self, group: Group | None) -> None:
        self._group = group
        self._known: set[str] = set()

    def labels(self, name: str) -> dict[str, str]:
        """The label, if there are groups at all."""
        if self._group is None:
            return {}
        try:
            # Half of a pair of surrogates would make the whole answer to a scrape unreadable.
            group = str(self._group(name)).encode("utf-8", "replace").decode()
        except Exception:
            # Whatever goes up has to come down under the same labels.
            group = "other"
        if group not in self._known:
            if len(self._known) >= MOST_GROUPS:
                group = "other"
            self._known.add(group)
        return {"group": group}


class Figures:
    """A listener that makes figures of events."""

    def __init__(self, instruments: Instruments, group: Group | None = None) -> None:
        self._record = instruments.record
        self._groups = Groups(group)

    def __call__(self, event: Event) -> None:
        """Count it."""
        if isinstance(event, FenceRefused):
            self._record(REJECTED, 1, self._groups.labels(event.lock))
        elif isinstance(event, (Waiting, Granted, Withdrawn, Renewed, Released, Lost)):
            labels = {"kind": event.kind, **self._groups.labels(event.name)}
            if isinstance(event, Waiting):
                self._record(WAITERS, 1, labels)
            elif isinstance(event, Renewed):
                self._record(RENEW, event.took, labels)
                self._record(MARGIN, event.margin, labels)
            elif isinstance(event, (Granted, Withdrawn)):
                self._asked(event, labels)
            else:
                self._held(event, labels)

    def _asked(self, event: Granted | Withdrawn, labels: dict[str, str]) -> None:
        if event.waited:
            self._record(WAITERS, -1, labels)
        outcome = "granted"
        if isinstance(event, Granted):
            self._record(HOLDERS, 1, labels)
        else:
            outcome = event.why
        self._record(ACQUIRE, event.took, {**labels, "outcome": outcome})

    def _held(self, event: Released | Lost, labels: dict[str, str]) -> None:
        # One that was lost before its grant was ever told of has not been counted as a holder either.
        if event.held is not None:
            self._record(HOLDERS, -1, labels)
            outcome = event.end if isinstance(event, Released) else "lost"
            self._record(HOLD, event.held, {**labels, "outcome": outcome})
        if isinstance(event, Lost):
            self._record(LOST, 1, {**labels, "reason": event.reason, "cause": event.cause or "unknown"})
