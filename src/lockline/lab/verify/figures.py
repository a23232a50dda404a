"""The figures of a run: how long operations waited, how fairly the workers were served, how many grants each second had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .history import History, Operation


@dataclass(frozen=True, slots=True)
class WaitTimes:
    """How long it took from an acquire to its lease, in seconds."""

    count: int
    median: float
    p99: float
    longest: float


def waits(operations: Sequence[Operation]) -> WaitTimes:
    """Of those that were granted."""
    took = sorted(one.got - one.begun for one in operations if one.got)
    if not took:
        return WaitTimes(0, 0.0, 0.0, 0.0)
    return WaitTimes(len(took), took[len(took) // 2], took[min(len(took) - 1, len(took) * 99 // 100)], took[-1])


def waits_by_kind(history: History) -> dict[str, WaitTimes]:
    """For each kind of hold; names whose holders stay long on purpose are apart."""
    groups: dict[str, list[Operation]] = {}
    for one in history.operations:
        word = one.name.rpartition("/")[2]
        groups.setdefault(f"lock, {word}" if word in ("kept", "deadline") else one.kind, []).append(one)
    return {kind: waits(group) for kind, group in sorted(groups.items())}


def jain(counts: Sequence[int]) -> float:
    """Jain's index: 1 if all got the same, 1/n if one got everything."""
    squares = sum(count * count for count in counts)
    return 1.0 if not squares else sum(counts) ** 2 / (len(counts) * squares)


def fairness(history: History) -> float | None:
    """Over the workers that were there from the beginning to the end, counting what they got of the contended locks; None if they are no two."""
    struck = {fault.worker for fault in history.faults if fault.worker is not None}
    shares: Counter[int] = Counter()
    for one in history.operations:
        if one.worker not in struck and one.name.rpartition("/")[2].startswith("lock-"):
            shares[one.worker] += bool(one.got)
    # One that was begun late, in the place of a dead one, could not get as much.
    late = {fault.begun for fault in history.faults if fault.kind.startswith("kill")}
    first: dict[int, float] = {}
    for one in history.operations:
        first[one.worker] = min(first.get(one.worker, one.begun), one.begun)
    there = [worker for worker in shares if not late or first[worker] < min(late)]
    return jain([shares[worker] for worker in there]) if len(there) > 1 else None


def per_second(history: History) -> list[int]:
    """Grants in each second of the run."""
    seconds = [0] * max(1, int(history.ended - history.began) + 1)
    for one in history.operations:
        if one.got >= history.began:
            seconds[min(int(one.got - history.began), len(seconds) - 1)] += 1
    return seconds


def longest_per_second(history: History) -> list[float]:
    """The longest wait that ended with a grant in each second, of the contended names."""
    seconds = [0.0] * max(1, int(history.ended - history.began) + 1)
    for one in history.operations:
        if one.got >= history.began and one.name.rpartition("/")[2] not in ("kept", "deadline"):
            at = min(int(one.got - history.began), len(seconds) - 1)
            seconds[at] = max(seconds[at], one.got - one.begun)
    return seconds
