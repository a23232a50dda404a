"""What can become of a lock under a failure, and what a run of one says."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .trace import TraceEvent


class Verdict(Enum):
    """From the worst to the best; the last three are no judgement of the lock."""

    LOST_UPDATE = "lost update"
    TWO_HOLDERS = "two holders"
    STUCK = "stuck for ever"
    LATE = "late"
    COSTLY = "costly"
    """Nobody is hurt and everybody pays: the figure says how much."""
    SAFE = "safe"
    NOT_APPLICABLE = "not applicable"
    MISSING = "server missing"
    FAILED = "the lab failed"

    @property
    def judged(self) -> bool:
        """Whether the lock was tried at all."""
        return self not in (Verdict.NOT_APPLICABLE, Verdict.MISSING, Verdict.FAILED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One cell of the matrix."""

    lock: str
    failure: str
    verdict: Verdict
    reason: str
    """One line."""
    figure: str = ""
    """How much, where the verdict has a measure: `1.9 s`, `49 requests`."""
    cause: str = ""
    cure: str = ""
    link: str = ""
    events: tuple[TraceEvent, ...] = ()
    violation: float | None = None
    """The moment at which it went wrong, on the trace's clock."""
    seconds: float = 0.0
    expected: Verdict | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def as_expected(self) -> bool:
        """Whether it is what the literature says; a server that is missing says nothing."""
        return self.verdict is Verdict.MISSING or self.verdict is self.expected

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "lock": self.lock, "failure": self.failure, "verdict": self.verdict.value, "figure": self.figure, "reason": self.reason,
            "expected": self.expected.value if self.expected else None, "as_expected": self.as_expected,
            "seconds": round(self.seconds, 3), "facts": self.facts,
            "events": [event.as_json(self.events[0].at) for event in self.events],
        }  # fmt: skip
