"""What the workers write down while they lock, and how it is read again: one line per event, so that a kill loses none.

Every stamp is of one clock, the machine's own since its start (`runtime.clock`), so stamps of different processes can be compared.

    ["a", op, name, kind, weight, capacity, ttl, begun]    an acquire begins
    ["g", op, token, got]                                  it was granted, and the lease said valid after `got`
    ["x", op, token, got]                                  it was granted, and the lease never said valid
    ["n", op, at]                                          it was not granted, for certain
    ["u", op, at]                                          no answer: it may have been granted or not
    ["v", op, at]                                          the lease still said valid after `at`
    ["r", op, at]                                          a release begins
    ["d", op, at, outcome]                                 it is over: released, lost or unknown
    ["s", op, at]                                          somebody else saw it wait in the line, before `at`
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

Outcome = Literal["", "refused", "unknown", "released", "lost"]
"""How an operation ended; empty for one that holds, or waits, to this day: its worker was killed."""


class Operation:
    """One acquire, what became of it, and until when its lease said that it was valid."""

    __slots__ = (
        "begun", "capacity", "ended", "got", "kind", "name", "op", "outcome", "releasing", "seen", "token", "ttl", "until", "weight",
        "worker",
    )  # fmt: skip

    def __init__(
        self, op: str, name: str, kind: str, weight: int, capacity: int, ttl: float, begun: float, worker: int
    ) -> None:
        self.op = op
        self.name = name
        self.kind = kind
        self.weight = weight
        self.capacity = capacity
        self.ttl = ttl
        self.begun = begun
        self.worker = worker
        self.token = 0
        self.got = 0.0
        """When the answer was in the worker's hand; 0 if none came."""
        self.until = 0.0
        """The last instant at which the lease is known to have said valid; 0 if it never did."""
        self.releasing = 0.0
        self.ended = 0.0
        self.outcome: Outcome = ""
        self.seen = 0.0
        """When somebody else had seen it wait in the line; 0 if nobody did."""

    @property
    def alone(self) -> bool:
        """Whether nobody may hold beside it."""
        return self.weight >= self.capacity

    def __repr__(self) -> str:
        return f"<{self.op} {self.kind} {self.name} token {self.token} {self.got:.6f}..{self.until:.6f}>"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to the run, from when to when."""

    kind: str
    begun: float
    ended: float
    worker: int | None = None
    """The one that it was done to; None for what may concern all."""
    detail: str = ""
    felt: float = 0.0
    """Until when its traces may be felt, where that is longer."""

    @property
    def over(self) -> float:
        """When nothing of it is left."""
        return max(self.ended, self.felt)

    def touches(self, begin: float, end: float) -> bool:
        """Whether it was going on at any time between these."""
        return self.begun <= end and begin <= self.ended


@dataclass(frozen=True, slots=True)
class RegisterRecord:
    """A number that everybody under one lock adds one to: how often it was written, what it is, what was refused there."""

    writes: int
    value: int
    refused: int = 0

    @property
    def lost(self) -> int:
        """Writes that another one undid."""
        return self.writes - self.value


@dataclass(slots=True)
class History:
    """A whole run."""

    operations: list[Operation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    fenced: dict[str, RegisterRecord] = field(default_factory=dict)
    unfenced: dict[str, RegisterRecord] = field(default_factory=dict)
    debris: list[str] | None = None
    """What was left when all was over; None if nobody looked."""
    stalls: list[tuple[float, float]] = field(default_factory=list)
    """For how long, at a moment, this machine had kept somebody waiting for a processor: (moment, seconds so far)."""
    began: float = 0.0
    ended: float = 0.0


_ENDS: Final[dict[str, Outcome]] = {"n": "refused", "u": "unknown"}


def operations(lines: Iterable[str], worker: int, seen: dict[str, float] | None = None) -> Iterator[Operation]:
    """The operations of one worker, in the order of their beginnings."""
    open_ones: dict[str, Operation] = {}
    decode = json.loads
    for line in lines:
        if line[-2:] != "]\n":  # the last one of a worker that was killed in the middle of it
            continue
        event = decode(line)
        what, op = event[0], event[1]
        if what == "a":
            _, _, name, kind, weight, capacity, ttl, begun = event
            found = open_ones[op] = Operation(op, name, kind, weight, capacity, ttl, begun, worker)
            yield found
            continue
        if what == "s":
            if seen is not None:
                seen.setdefault(op, event[2])
            continue
        found = open_ones[op]
        if what == "v":
            found.until = event[2]
        elif what == "g" or what == "x":
            found.token = event[2]
            found.got = event[3]
            if what == "g":
                found.until = found.got
        elif what == "r":
            found.releasing = event[2]
        elif what == "d":
            found.ended, found.outcome = event[2], event[3]
            del open_ones[op]
        else:
            found.ended, found.outcome = event[2], _ENDS[what]
            del open_ones[op]


def read(folder: Path) -> list[Operation]:
    """Every operation that the workers of this folder wrote down, with what the witness saw of them."""
    found: list[Operation] = []
    seen: dict[str, float] = {}
    for path in sorted(folder.glob("history-*.log")):
        with open(path) as lines:
            found += operations(lines, int(path.stem.partition("-")[2]), seen)
    for operation in found:
        operation.seen = seen.get(operation.op, 0.0)
    return found


class Pen:
    """Writes one worker's events, each with one system call: what was written stays, whoever is killed."""

    def __init__(self, folder: Path, number: int) -> None:
        self._file = os.open(
            folder / f"history-{number}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )

    def note(self, *event: object) -> None:
        """One event."""
        os.write(self._file, (json.dumps(event, separators=(",", ":")) + "\n").encode())

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)
