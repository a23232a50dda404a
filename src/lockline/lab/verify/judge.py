"""The judge: from the history of a run to a verdict on each promise. Pure, and linear in the history.

It believes nobody but the workers' own stamps, and takes each answer for what it proves: an operation without an answer is
unknown, neither for nor against; a lease counts as valid only between instants at which it said so.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from . import holding, turns
from .history import History, Operation
from .verdict import (
    DEBRIS,
    EXCLUSION,
    FENCE,
    ORDER,
    PERMITS,
    READERS,
    RECOVERY,
    RISING,
    UNIQUE,
    WAKE_UP,
    PromiseFinding,
    RunVerdict,
    Violation,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What is judged, and how much it takes to say that it was held."""

    fifo: bool = True
    push: bool = True
    shares: bool = True
    """Whether the store has read-write locks and semaphores at all."""
    firm: bool = True
    """Whether it promises that nobody gets in beside another, whatever is done to it here."""
    ttl: float = 2.0
    life: float = 2.0
    """How long a claim stands in the store after its client has died."""
    least: int = 100
    """Grants that a promise about them needs."""
    least_waits: int = 10
    """The same for promises about those who wait."""


DEFAULT: Final = Rules()
CONTENDED: Final = 5
"""Of so many grants of a lock at least one goes to somebody who found it taken, even with few workers: only those are a test of exclusion."""


def judge(history: History, rules: Rules = DEFAULT) -> RunVerdict:
    """The verdict on a whole run."""
    findings = {
        promise: PromiseFinding(promise, least=least)
        for promise, least in (
            (EXCLUSION, rules.least // CONTENDED or 1),
            (READERS, rules.least_waits),
            (PERMITS, rules.least_waits),
            (UNIQUE, rules.least),
            (RISING, rules.least),
            (FENCE, rules.least),
            (ORDER, rules.least_waits),
            (WAKE_UP, rules.least_waits),
            (RECOVERY, 1),
            (DEBRIS, 1),
        )
    }
    if not rules.shares:
        findings[READERS].missing = findings[PERMITS].missing = "this store refuses read-write locks and semaphores"
    calm = turns.Calm(history.stalls)
    disturbed = turns.Disturbances(history.faults, history.operations, rules.life)
    kills = [fault for fault in history.faults if fault.kind.startswith("kill")]
    quiet_after = disturbed.any.quiet_after(kills)
    by_validity = PromiseFinding(RISING)
    for operations in _by_name(history.operations).values():
        granted = sorted((one for one in operations if one.got), key=attrgetter("got"))
        if granted:
            for found in (holding.sharing(granted), holding.unique(granted), holding.rising(granted)):
                findings[found.promise].take(found)
            by_validity.take(holding.rising_by_validity(granted))
        if rules.fifo:
            findings[ORDER].take(turns.order(operations, disturbed, calm))
        waits = turns.WaitsByTime(operations, history, kills)
        if rules.push:
            findings[WAKE_UP].take(turns.wake_up(operations, waits, disturbed, calm))
        findings[RECOVERY].take(turns.recovery(operations, waits, quiet_after, rules.life, calm))
        findings[RECOVERY].take(turns.stuck(operations, waits, rules.life, history, disturbed, calm))
    if rules.firm and not any(findings[promise].broken for promise in (EXCLUSION, READERS)):
        findings[RISING].take(by_validity)
    if not rules.fifo:
        findings[ORDER].missing = "this store promises no order"
    elif not findings[ORDER].checked:
        findings[ORDER].missing = "nobody came while another was seen waiting"
    if not rules.push:
        findings[WAKE_UP].missing = "this store promises no push"
    if not kills:
        findings[RECOVERY].missing = "no holder was killed"
    elif not findings[RECOVERY].checked:
        findings[RECOVERY].missing = "no holder was killed with somebody waiting and nothing else going on"
    _fence(history, findings[FENCE])
    _debris(history, findings[DEBRIS])
    outcomes = Counter(one.outcome for one in history.operations)
    return RunVerdict(
        list(findings.values()),
        grants=sum(1 for one in history.operations if one.got),
        unknown=outcomes["unknown"] + outcomes[""],
        refused=sum(register.refused for register in history.fenced.values()),
        lost_without_fence=sum(register.lost for register in history.unfenced.values()),
    )


def _by_name(operations: list[Operation]) -> dict[str, list[Operation]]:
    found: dict[str, list[Operation]] = {}
    for operation in operations:
        found.setdefault(operation.name, []).append(operation)
    return found


def _fence(history: History, finding: PromiseFinding) -> None:
    for name, register in history.fenced.items():
        finding.checked += register.writes
        if register.lost:
            text = f"{name!r}: {register.lost} of {register.writes:,} updates were lost behind the fence"
            finding.breaks(Violation(history.ended, text))
            finding.broken += register.lost - 1
    if not history.fenced:
        finding.missing = "nothing was written"
    refused = sum(register.refused for register in history.fenced.values())
    finding.remark = f", {refused:,} late accesses refused" if refused else ", and nobody came late"


def _debris(history: History, finding: PromiseFinding) -> None:
    if history.debris is None:
        finding.missing = "nobody could look when all was over"
        return
    finding.checked += 1
    for left in history.debris:
        finding.breaks(Violation(history.ended, f"{left!r} is still claimed after all have ended and a ttl has passed"))
