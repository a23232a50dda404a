"""The judge of those who wait: nobody is overtaken, nobody is forgotten, and a dead holder is no obstacle for ever."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from .history import Fault, History, Operation
from .verdict import ORDER, RECOVERY, WAKE_UP, Finding, Violation

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
        """Seconds from one moment to the other, without those that were nobody's fault."""
        return end - begin - (self._so_far(end, 1) - self._so_far(begin, 0))

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
        self._latest: list[float] = []
        for fault in self._faults:
            self._latest.append(max(fault.over, self._latest[-1] if self._latest else fault.over))

    def between(self, begin: float, end: float) -> bool:
        """By any of these faults."""
        at = bisect_right(self._begun, end)
        return bool(at) and self._latest[at - 1] >= begin

    def next(self, moment: float) -> float:
        """When the next of them begins; that moment, if one is going on."""
        if self.between(moment, moment):
            return moment
        at = bisect_right(self._begun, moment)
        return self._begun[at] if at < len(self._begun) else float("inf")


class Disturbances:
    """The same by whom it may concern."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        # A worker whose wall clock is off has nothing to complain of.
        felt = [fault for fault in faults if fault.kind != "step a clock"]
        self.any = Disturbed(felt)
        self._all = Disturbed(fault for fault in felt if fault.worker is None)
        self._one = {
            worker: Disturbed(fault for fault in felt if fault.worker == worker)
            for worker in {fault.worker for fault in felt}
        }

    def of(self, operation: Operation, begin: float, end: float) -> bool:
        """Whether the store, or this worker itself, may have been late for this operation, or forgotten it."""
        own = self._one.get(operation.worker)
        return self._all.between(begin, end) or (own is not None and own.between(begin, end))


def order(operations: Sequence[Operation], disturbed: Disturbances, calm: Calm) -> Finding:
    """Nobody holds who came when another was seen waiting, before that one does; of one name, and in pairs of which one is exclusive.

    Whoever gave up by a timeout was overtaken as well, if he was still waiting then. A claim that its store may have
    forgotten (something was done to the run while it waited) stands at the end again, and says nothing.
    """
    finding = Finding(ORDER)
    turns = sorted((one for one in operations if _came_to_its_turn(one)), key=_turn, reverse=True)
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
        if one.seen and not disturbed.of(one, one.begun, _turn(one)) and not calm.stalled(one):
            if waited is None or one.seen < waited.seen:
                waited = one
            if one.alone and (waited_alone is None or one.seen < waited_alone.seen):
                waited_alone = one
    waits = [(one.seen, _turn(one)) for one in turns if one.seen and one.alone]
    finding.checked = len(_inside([one.begun for one in turns if one.until], waits))
    return finding


def _came_to_its_turn(operation: Operation) -> bool:
    return bool(operation.until) or (operation.outcome == "refused" and bool(operation.seen))


def _turn(operation: Operation) -> float:
    return operation.got if operation.until else operation.ended - WITHDRAWAL


def _inside(moments: Iterable[float], spans: Iterable[tuple[float, float]]) -> list[float]:
    """Those moments that lie within any of the spans."""
    found = []
    ordered = sorted(spans)
    at, latest = 0, 0.0
    for moment in sorted(moments):
        while at < len(ordered) and ordered[at][0] < moment:
            latest = max(latest, ordered[at][1])
            at += 1
        if latest > moment:
            found.append(moment)
    return found


def wake_up(operations: Sequence[Operation], disturbed: Disturbances, calm: Calm) -> Finding:
    """When an exclusive lease was released and somebody was seen waiting, the next one holds soon."""
    finding = Finding(WAKE_UP)
    granted = sorted((one for one in operations if one.got), key=_got)
    times = [one.got for one in granted]
    releases = {one.releasing: one for one in granted if one.alone and one.outcome == "released"}
    for moment in _inside(releases, [(one.seen, _turn_or_end(one)) for one in operations if one.seen]):
        released = releases[moment]
        at = bisect_right(times, moment)
        if at == len(times) or disturbed.any.between(released.got, times[at]):
            continue
        finding.checked += 1
        took = calm.between(released.ended, times[at])
        if took > SOON:
            text = (
                f"{released.name!r}: {released.op} gave it back, others were waiting, and the next one ({granted[at].op}) "
                f"held only {took:.1f} s later"
            )
            finding.breaks(Violation(released.ended, text, (released, granted[at])))
    return finding


def _turn_or_end(operation: Operation, otherwise: float = 0.0) -> float:
    return operation.got or operation.ended or otherwise


def recovery(
    operations: Sequence[Operation], kills: Sequence[Fault], life: float, history: History, calm: Calm
) -> Finding:
    """Of one name: when a holder was killed, whoever waits holds within the claim's life and a second."""
    finding = Finding(RECOVERY)
    times = sorted(one.got for one in operations if one.got)
    for kill in kills:
        others = Disturbed(fault for fault in history.faults if fault is not kill and fault.kind != "step a clock")
        for held in operations:
            # Whoever only waited is an obstacle, too, once its turn has come.
            if held.worker != kill.worker or held.releasing or held.outcome:
                continue
            waiting = [
                one for one in operations if one.worker != kill.worker and _turn_or_end(one, history.ended) > kill.begun
            ]
            if not waiting:
                continue
            first = min(waiting, key=attrgetter("begun"))
            at = bisect_left(times, kill.begun)
            # It is known that nobody held it as long as the first one waited, and as long as nothing else was going on.
            turn = times[at] if at < len(times) else float("inf")
            known = min(turn, _turn_or_end(first, history.ended), others.next(kill.begun))
            took = calm.between(max(kill.begun + life, first.begun), known)
            if turn > known and took <= SOON:
                continue
            finding.checked += 1
            if took > SOON:
                text = (
                    f"{held.name!r}: {held.op} was killed while it {'held' if held.until else 'waited'}, {first.op} waited, and nobody held it for "
                    f"{known - kill.begun:.1f} s; it should have been {life + SOON:.1f} s at most"
                )
                finding.breaks(Violation(kill.begun, text, (held, first)))
    return finding


def stuck(
    operations: Sequence[Operation], life: float, history: History, disturbed: Disturbances, calm: Calm
) -> Finding:
    """Of one name: where nobody holds, whoever waits does so for a claim's life and a second at most, whatever died before it."""
    finding = Finding(RECOVERY)
    granted = sorted((one for one in operations if one.got), key=_got)
    free = history.began
    for number in range(len(granted) + 1):
        turn = granted[number].got if number < len(granted) else history.ended
        # Most gaps are none; so the walk stays linear.
        if turn - free > life + SOON:
            for one in operations:
                begin, end = max(free, one.begun), min(turn, _turn_or_end(one, history.ended))
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
