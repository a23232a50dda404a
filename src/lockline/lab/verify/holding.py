"""The judge of those who hold: never two at once, and tokens that only rise. Every walk is linear in the operations of a name."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import attrgetter

from .history import Operation
from .verdict import EXCLUSION, PERMITS, READERS, RISING, UNIQUE, PromiseFinding, Violation

_got = attrgetter("got")
_begun = attrgetter("begun")


def kind_of(operation: Operation) -> str:
    """The promise about sharing that this operation is under."""
    if operation.kind in ("read", "write"):
        return READERS
    return PERMITS if operation.kind == "permit" else EXCLUSION


def sharing(granted: Sequence[Operation]) -> PromiseFinding:
    """Leases that said valid at one instant weigh no more than there is room; `granted` is in the order of `got`.

    A lease is valid from its grant on and, once it is not, never again. So between the first and the last instant at which it
    was seen to be valid it was so throughout, and two such spans that overlap are two valid leases at one instant.

    Checked is only who asked before the last one had gone who stood in its way: a lock that nobody else wants is no test.
    """
    finding = PromiseFinding(kind_of(granted[0]))
    holding: list[tuple[float, int, Operation]] = []
    weight = 0
    free = room = 0.0
    """Since when nobody at all was in, and since when there was room for one more."""
    for number, operation in enumerate(granted):
        if not operation.until:
            continue
        now = operation.got
        while holding and holding[0][0] <= now:
            weight -= heappop(holding)[2].weight
        finding.checked += operation.begun < (free if operation.alone else room)
        if weight + operation.weight > operation.capacity:
            others = [one for *_, one in sorted(holding)[-3:]]
            finding.breaks(Violation(now, _two_holders(operation, others), (*others, operation)))
        heappush(holding, (operation.until, number, operation))
        weight += operation.weight
        free = max(free, operation.until)
        if weight >= operation.capacity:
            room = max(room, holding[0][0])
    return finding


def _two_holders(late: Operation, others: Sequence[Operation]) -> str:
    named = " and ".join(f"{one.op} ({one.kind}, token {one.token})" for one in others)
    overlap = min(late.until, max(one.until for one in others)) - late.got
    return (
        f"{late.name!r}: {late.op} ({late.kind}, token {late.token}) was granted while the lease of {named} said valid; "
        f"both said so for {max(overlap, 0.0) * 1000:.3f} ms at least"
    )


def unique(granted: Sequence[Operation]) -> PromiseFinding:
    """No token twice on one name."""
    finding = PromiseFinding(UNIQUE)
    owners: dict[int, Operation] = {}
    for operation in granted:
        finding.checked += 1
        other = owners.setdefault(operation.token, operation)
        if other is not operation:
            text = f"{operation.name!r}: {other.op} and {operation.op} both have token {operation.token}"
            finding.breaks(Violation(operation.got, text, (other, operation)))
    return finding


def rising(granted: Sequence[Operation]) -> PromiseFinding:
    """Whoever asked after the other was answered has the higher token; `granted` is in the order of `got`."""
    finding = PromiseFinding(RISING)
    answered = iter(granted)
    nearest = next(answered, None)
    highest: Operation | None = None
    for operation in sorted(granted, key=_begun):
        while nearest is not None and nearest.got < operation.begun:
            if highest is None or nearest.token > highest.token:
                highest = nearest
            nearest = next(answered, None)
        _compare(finding, highest, operation)
    return finding


def rising_by_validity(granted: Sequence[Operation]) -> PromiseFinding:
    """The same of pairs that exclude each other, of which more is known: the one that said valid first was granted first.

    This is so only where the store never lets two in: one that was in already, and heard of it late, looks like a later one.
    """
    finding = PromiseFinding(RISING)
    shared: Operation | None = None
    alone: Operation | None = None
    for operation in granted:
        if not operation.until:
            continue
        _compare(finding, alone, operation)
        if operation.alone:
            _compare(finding, shared, operation)
            if alone is None or operation.token > alone.token:
                alone = operation
        elif shared is None or operation.token > shared.token:
            shared = operation
    return finding


def _compare(finding: PromiseFinding, earlier: Operation | None, later: Operation) -> None:
    if earlier is None:
        return
    finding.checked += 1
    if later.token < earlier.token:
        text = (
            f"{later.name!r}: {later.op} was granted after {earlier.op}, under the lower token: "
            f"{later.token} after {earlier.token}"
        )
        finding.breaks(Violation(later.got, text, (earlier, later)))
