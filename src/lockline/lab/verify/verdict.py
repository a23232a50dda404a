"""What the judge says: of each promise whether it was held, broken, or not put to the test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from .history import Operation

State = Literal["held", "broken", "not exercised"]
HELD: Final[State] = "held"
BROKEN: Final[State] = "broken"
NOT_EXERCISED: Final[State] = "not exercised"


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not happen and did."""

    at: float
    text: str
    operations: tuple[Operation, ...] = ()
    """Those that took part, for the picture."""


@dataclass(slots=True)
class PromiseFinding:
    """What the judge found about one promise."""

    promise: str
    checked: int = 0
    """How often it could have been broken."""
    least: int = 1
    """So many are needed to say that it was held."""
    missing: str = ""
    """What kept it from being put to the test at all."""
    remark: str = ""
    """What else there is to say if it was held."""
    broken: int = 0
    first: Violation | None = None

    def breaks(self, violation: Violation) -> None:
        """Count it; the earliest one is kept."""
        self.broken += 1
        if self.first is None or violation.at < self.first.at:
            self.first = violation

    def take(self, other: PromiseFinding) -> None:
        """Count what was found of it elsewhere, too."""
        self.checked += other.checked
        self.broken += other.broken
        if other.first is not None and (self.first is None or other.first.at < self.first.at):
            self.first = other.first

    @property
    def state(self) -> State:
        """The word on it."""
        if self.broken:
            return BROKEN
        return NOT_EXERCISED if self.checked < self.least else HELD

    @property
    def text(self) -> str:
        """One line for people."""
        if self.first is not None:
            return self.first.text
        if self.state == HELD:
            return f"{self.checked:,} checked{self.remark}"
        return self.missing or f"only {self.checked:,} of at least {self.least:,} chances to break it"


@dataclass(slots=True)
class RunVerdict:
    """What came of a run."""

    findings: list[PromiseFinding] = field(default_factory=list)
    grants: int = 0
    unknown: int = 0
    """Operations that got no answer: they count neither for nor against."""
    refused: int = 0
    """Accesses that the fence turned away: late ones, which without it would have been lost updates."""
    lost_without_fence: int = 0
    """Updates that were lost at the register without a fence."""
    failed: int = 0
    """Workers that ended before their time, by a mistake that is neither the store's nor a fault: what they would have said is missing."""

    def of(self, promise: str) -> PromiseFinding:
        """What was found about this one."""
        return next(finding for finding in self.findings if finding.promise == promise)

    @property
    def broken(self) -> list[PromiseFinding]:
        """The promises that were broken."""
        return [finding for finding in self.findings if finding.state == BROKEN]

    @property
    def inconclusive(self) -> list[PromiseFinding]:
        """The promises that no run may leave out, and this one did."""
        return [finding for finding in self.findings if finding.promise in NEEDED and finding.state == NOT_EXERCISED]

    @property
    def code(self) -> int:
        """0 held, 1 broken, 2 inconclusive."""
        return 1 if self.broken else 2 if self.inconclusive or self.failed else 0


EXCLUSION: Final = "exclusion"
READERS: Final = "readers and writers"
PERMITS: Final = "semaphores"
UNIQUE: Final = "tokens are unique"
RISING: Final = "tokens rise"
FENCE: Final = "the fence"
ORDER: Final = "order of arrival"
WAKE_UP: Final = "wake-up"
RECOVERY: Final = "recovery"
DEBRIS: Final = "no debris"
NEEDED: Final = (EXCLUSION, UNIQUE, RISING, FENCE, DEBRIS)
"""Without these there is no verdict; what is left can be said only by a store that still answers at the end."""

MEANS: Final = {
    EXCLUSION: "at no instant did two leases of one lock say that they are valid",
    READERS: "no lease of a writer was valid beside another lease",
    PERMITS: "never were more permits valid than the limit",
    UNIQUE: "no token was given twice on one name",
    RISING: "whoever was granted later had the higher token",
    FENCE: "no update was lost at a register that checks tokens",
    ORDER: "nobody was overtaken who was seen waiting before the other came",
    WAKE_UP: "after a release the next one held within a second",
    RECOVERY: "after a holder was killed the next one held within its ttl and a second",
    DEBRIS: "nothing is left in the store",
}
