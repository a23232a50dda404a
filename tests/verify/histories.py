"""Histories written by hand, for the judge."""

from __future__ import annotations

import json
from collections.abc import Iterator

from lockline.lab.verify.history import Fault, History, Operation, RegisterRecord


def held(
    op: str,
    token: int,
    begun: float,
    got: float,
    until: float,
    *,
    name: str = "x",
    kind: str = "lock",
    weight: int = 1,
    capacity: int = 1,
    seen: float = 0.0,
    released: bool = True,
) -> Operation:
    """One that was granted at `got` and said valid until `until`; it was released right after that."""
    found = Operation(op, name, kind, weight, capacity, 2.0, begun, int(op.partition(".")[0]))
    found.token, found.got, found.until, found.seen = token, got, until, seen
    if released:
        found.releasing, found.ended, found.outcome = until + 0.001, until + 0.002, "released"
    return found


def refused(op: str, begun: float, ended: float, *, seen: float = 0.0) -> Operation:
    """One that waited in vain."""
    found = Operation(op, "x", "lock", 1, 1, 2.0, begun, int(op.partition(".")[0]))
    found.ended, found.outcome, found.seen = ended, "refused", seen
    return found


def history(*operations: Operation, faults: tuple[Fault, ...] = (), ended: float = 100.0) -> History:
    """A run of these, with registers that lost nothing and a clean store."""
    return History(
        list(operations), list(faults), {"x": RegisterRecord(10, 10)}, {"x": RegisterRecord(10, 10)}, [], [], 0.0, ended
    )


def lines(operations: int, workers: int, names: int) -> Iterator[str]:
    """What workers would have written of so many operations in good order, for the clock."""
    free = [0.0] * names
    for number in range(operations):
        name, worker = number % names, number % workers
        op, at = f"{worker}.0.{number}", max(free[name], number * 1e-4)
        # It comes before the one before it on this name has let go.
        for event in (
            ["a", op, f"n{name}", "lock", 1, 1, 2.0, at - 1e-4 * names - 3e-5],
            ["g", op, number + 1, at + 1e-5],
            ["v", op, at + 2e-5],
            ["r", op, at + 3e-5],
            ["d", op, at + 4e-5, "released"],
        ):
            yield json.dumps(event, separators=(",", ":")) + "\n"
        free[name] = at + 5e-5
