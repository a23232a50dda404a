"""The judge of those who wait: nobody is overtaken, nobody is forgotten, and a dead holder is no obstacle for ever."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final

from .history import Fault, History, Operation
from .plan import left_to_run_out
from .verdict import ORDER, RECOVERY, WAKE_UP, PromiseFinding, Violation

SOON: Final = 1.0
"""Within so many seconds the next one holds; the machine's own stalls are not counted."""
WITHDRAWAL: Final = 1.0
"""Whoever gives up has left the line so long before it says so, at most: what it was overtaken by then says nothing."""
_got = attrgetter("got")


class Calm:
    """A clock that stands still while this machine keeps somebody waiting for a processor."""

    def __init__(self, stalls: Sequence[tuple[float, float]]) -> None:
        self._moments = [moment for moment, _ in stalls]
        self._stalled = [seconds for _, seconds in stalls]

    def between(self, begin: float, end: float) -> float:
        """Seconds from one moment to the other, without those that were nobody's fault; none if the other comes first."""
        return max(0.0, end - begin - (self._so_far(end, 1) - self._so_far(begin, 0))) if end > begin else 0.0

    def stalled(self, operation: Operation) -> bool:
        """Whether its worker may have been kept from renewing its place in the line."""
        begin, end = operation.begun, _turn(operation)
        return end - begin - self.between(begin, end) > operation.ttl / 2

    def _so_far(self, moment: float, upwards: int) -> float:
        # The sample before the beginning and the one after the end: too much is forgiven rather than too little.
        at = bisect_right(self._moments, moment) - 1 + upwards
        return self._stalled[max(0, min(at, len(self._stalled) - 1))] if self._stalled else 0.0


class Disturbed:
    """Whether something was done to a run at some time."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._faults = sorted(faults, key=lambda fault: fault.begun)
        self._begun = [fault.begun for fault in self._faults]
        self._latest = list(accumulate((fault.over for fault in self._faults), max))

    def between(self, begin: float, end: float) -> bool:
        """By any of these faults."""
        at = bisect_right(self._begun, end)
        return bool(at) and self._latest[at - 1] >= begin

    def quiet_after(self, kills: Iterable[Fault]) -> list[tuple[Fault, float]]:
        """Each of these kills, which are among the faults, and until when nothing else was going on; its own moment, if something was."""
        found = []
        # Of those that began up to a kill the two that last longest: one of them may be the kill itself.
        wanted = {id(kill) for kill in kills}
        longest: list[Fault] = []
        for at, fault in enumerate(self._faults):
            longest = sorted((*longest, fault), key=attrgetter("over"))[-2:]
            if id(fault) in wanted:
                busy = any(other is not fault and other.over >= fault.begun for other in longest)
                after = self._begun[at + 1] if at + 1 < len(self._begun) else float("inf")
                found.append((fault, fault.begun if busy else after))
        return found


class Disturbances:
    """The same by whom it may concern.

    An operation without an answer counts among them: the store was out of reach for it, whoever's doing that was, and what it
    claimed may stand in a line for a claim's life after that. So does, for its worker, a lease that was lost although it was
    renewed: whatever kept that worker from renewing it may have cost its other claims their places.
    """

    def __init__(self, faults: Iterable[Fault], operations: Sequence[Operation] = (), life: float = 0.0) -> None:
        # A worker whose wall clock is off has nothing to complain of.
        felt = [fault for fault in faults if fault.kind != "step a clock"]
        felt += [
            Fault("no answer", one.releasing or one.begun, one.ended, felt=one.ended + life)
            for one in operations
            if one.outcome == "unknown"
        ]
        felt += [
            Fault("lost a lease", one.until or one.begun, one.ended, one.worker)
            for one in operations
            if one.outcome == "lost" and not left_to_run_out(one.name)
        ]
        self.any = Disturbed(felt)
        self._all = Disturbed(fault for fault in felt if fault.worker is None)
        by_worker: dict[int, list[Fault]] = {}
        for fault in felt:
            if fault.worker is not None:
                by_worker.setdefault(fault.worker, []).append(fault)
        self._one = {worker: Disturbed(of) for worker, of in by_worker.items()}

    def of(self, operation: Operation, begin: float, end: float) -> bool:
        """Whether the store, or this worker itself, may have been late for this operation, or forgotten it."""
        own = self._one.get(operation.worker)
        return self._all.between(begin, end) or (own is not None and own.between(begin, end))


class WaitsByTime:
    """Who waited for one name, found by the time. Whoever got no answer says nothing here: it may have held."""

    def __init__(self, operations: Iterable[Operation], history: History, kills: Iterable[Fault]) -> None:
        died = {kill.worker: kill.begun for kill in kills}
        known = (one for one in operations if one.got or one.outcome != "unknown")
        self._ordered = sorted(known, key=attrgetter("begun"))
        self._begun = [one.begun for one in self._ordered]
        self.ends = {
            one.op: one.got or one.ended or died.get(one.worker, history.ended) for one in self._ordered
        }  # fmt: skip
        """When the wait of each was over, one way or the other."""
        self._latest = list(accumulate((self.ends[one.op] for one in self._ordered), max))

    def first(self, moment: float) -> Operation | None:
        """Of those that still waited after this moment, or came after it, the one that came first."""
        at = bisect_right(self._latest, moment)
        return self._ordered[at] if at < len(self._ordered) else None

    def between(self, begin: float, end: float) -> Sequence[Operation]:
        """Those that may have waited at some time between these."""
        return self._ordered[bisect_right(self._latest, begin) : bisect_left(self._begun, end)]


def order(operations: Sequence[Operation], disturbed: Disturbances, calm: Calm) -> PromiseFinding:
    """Nobody holds who came when another was seen waiting, before that one does; of one name, and in pairs of which one is exclusive.

    Whoever gave up by a timeout was overtaken as well, if he was still waiting then. A claim that its store may have
    forgotten (something was done to the run while it waited) stands at the end again, and says nothing.
    """
    finding = PromiseFinding(ORDER)
    turns = sorted((one for one in operations if _came_to_its_turn(one)), key=_turn, reverse=True)
    patient = [
        one for one in turns if one.seen and not disturbed.of(one, one.begun, _turn(one)) and not calm.stalled(one)
    ]
    in_line = {id(one) for one in patient}
    # From the last turn to the first: the earliest that anybody was seen waiting whose turn came later.
    waited: Operation | None = None
    waited_alone: Operation | None = None
    for one in turns:
        if one.until:
            earlier = waited if one.alone else waited_alone
            if earlier is not None and earlier.seen < one.begun:
                text = (
                    f"{one.name!r}: {one.op} came when {earlier.op} had been waiting for "
                    f"{one.begun - earlier.begun:.3f} s, and held before it"
                )
                finding.breaks(Violation(one.got, text, (earlier, one)))
        if id(one) in in_line:
            if waited is None or one.seen < waited.seen:
                waited = one
            if one.alone and (waited_alone is None or one.seen < waited_alone.seen):
                waited_alone = one
    waits = [(one.seen, _turn(one)) for one in patient if one.alone]
    finding.checked = len(_inside([one.begun for one in turns if one.until], waits))
    return finding


def _came_to_its_turn(operation: Operation) -> bool:
    return bool(operation.until) or (operation.outcome == "refused" and bool(operation.seen))


def _turn(operation: Operation) -> float:
    return operation.got if operation.until else operation.ended - WITHDRAWAL


def _inside(moments: Iterable[float], spans: Iterable[tuple[float, float]]) -> dict[float, float]:
    """Those moments that lie within any of the spans, and when the last of these ends."""
    found = {}
    ordered = sorted(spans)
    at, latest = 0, 0.0
    for moment in sorted(moments):
        while at < len(ordered) and ordered[at][0] < moment:
            latest = max(latest, ordered[at][1])
            at += 1
        if latest > moment:
            found[moment] = latest
    return found


def wake_up(operations: Sequence[Operation], waits: WaitsByTime, disturbed: Disturbances, calm: Calm) -> PromiseFinding:
    """When an exclusive lease was released and somebody was seen waiting, and still waits, the next one holds soon."""
    finding = PromiseFinding(WAKE_UP)
    granted = sorted((one for one in operations if one.got), key=_got)
    times = [one.got for one in granted]
    releases = {one.releasing: one for one in granted if one.alone and one.outcome == "released"}
    seen = [(one.seen, waits.ends[one.op]) for one in operations if one.seen and one.op in waits.ends]
    for moment, gave_up in _inside(releases, seen).items():
        released = releases[moment]
        at = bisect_right(times, moment)
        if at == len(times) or disturbed.any.between(released.got, times[at]):
            continue
        took = calm.between(released.ended, min(times[at], gave_up))
        if times[at] > gave_up and took <= SOON:
            continue  # the last one that waited left before it could be late
        finding.checked += 1
        if took > SOON:
            text = (
                f"{released.name!r}: {released.op} gave it back, others were waiting, and the next one ({granted[at].op}) "
                f"held only {times[at] - released.ended:.1f} s later"
            )
            finding.breaks(Violation(released.ended, text, (released, granted[at])))
    return finding


def recovery(
    operations: Sequence[Operation], waits: WaitsByTime, kills: Sequence[tuple[Fault, float]], life: float, calm: Calm
) -> PromiseFinding:
    """Of one name: when a holder was killed, whoever waits holds within the claim's life and a second.

    `kills` come with the moment until which nothing else was going on.
    """
    finding = PromiseFinding(RECOVERY)
    times = sorted(one.got for one in operations if one.got)
    left: dict[int, list[Operation]] = {}
    for one in operations:
        # Whoever only waited is an obstacle, too, once its turn has come.
        if not one.releasing and not one.outcome:
            left.setdefault(one.worker, []).append(one)
    for kill, quiet in kills:
        first = waits.first(kill.begun)
        if kill.worker is None or first is None:
            continue
        at = bisect_left(times, kill.begun)
        # It is known that nobody held it as long as the first one waited, and as long as nothing else was going on.
        turn = times[at] if at < len(times) else float("inf")
        known = min(turn, waits.ends[first.op], quiet)
        took = calm.between(max(kill.begun + life, first.begun), known)
        if turn > known and took <= SOON:
            continue
        for held in left.get(kill.worker, ()):
            finding.checked += 1
            if took > SOON:
                text = (
                    f"{held.name!r}: {held.op} was killed while it {'held' if held.until else 'waited'}, {first.op} waited, and nobody held it for "
                    f"{known - kill.begun:.1f} s; it should have been {life + SOON:.1f} s at most"
                )
                finding.breaks(Violation(kill.begun, text, (held, first)))
    return finding


def stuck(
    operations: Sequence[Operation],
    waits: WaitsByTime,
    life: float,
    history: History,
    disturbed: Disturbances,
    calm: Calm,
) -> PromiseFinding:
    """Of one name: where nobody holds, whoever waits does so for a claim's life and a second at most, whatever died before it."""
    finding = PromiseFinding(RECOVERY)
    granted = sorted((one for one in operations if one.got), key=_got)
    free = history.began
    for number in range(len(granted) + 1):
        turn = granted[number].got if number < len(granted) else history.ended
        if turn - free > life + SOON:
            for one in waits.between(free, turn):
                begin, end = max(free, one.begun), min(turn, waits.ends[one.op])
                if calm.between(begin, end) > life + SOON and not disturbed.of(one, begin, end):
                    text = f"{one.name!r}: {one.op} waited for {end - begin:.1f} s while nobody held it"
                    finding.checked += 1
                    finding.breaks(Violation(begin + life + SOON, text, (*granted[max(0, number - 1) : number], one)))
                    break
        if number < len(granted):
            one = granted[number]
            # Of one whose end is not known the store may believe for a while that it holds.
            known = one.outcome in ("released", "lost") and one.ended
            free = max(free, one.ended if known else max(one.until, one.got) + 2 * life)
    return finding
