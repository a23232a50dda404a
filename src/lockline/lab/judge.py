"""What the trace and the register's own history say about a lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .failures.face import Failure
from .locks.face import PublishedLock
from .register import Write
from .stage import Stage
from .trace import TraceEvent
from .verdicts import Outcome, Verdict


@dataclass(slots=True)
class Span:
    """From a grant to its end, as its owner saw it."""

    lane: str
    began: float
    ended: float
    token: int | None = None

    def covers(self, at: float) -> bool:
        return self.began < at < self.ended


def spans(events: Sequence[TraceEvent], *, knows: bool, fenced: bool) -> list[Span]:
    """Who believed to hold, and until when.

    A holder that can know its deadline believes only as long as it last looked; any other believes until it lets go. Behind a
    fence belief does not count: a hold lasts for as long as the resource let its owner in.
    """
    proofs = ("read", "wrote") if fenced else ("checked", "read", "wrote", "froze")
    found: list[Span] = []
    open_now: dict[str, Span] = {}
    last = events[-1].at if events else 0.0
    for event in events:
        mine = open_now.get(event.lane)
        if event.kind == "granted":
            open_now[event.lane] = Span(event.lane, event.at, event.at if knows else last, event.token)
            found.append(open_now[event.lane])
        elif mine is None:
            continue
        elif event.kind in ("letting go", "killed", "gave up"):
            if not knows or event.kind == "killed":
                mine.ended = event.at
            del open_now[event.lane]
        elif knows and event.kind in proofs:
            mine.ended = event.at
    return found


def two_holders(events: Sequence[TraceEvent], *, knows: bool, fenced: bool = False) -> float | None:
    """The moment at which somebody came in, or acted, beside one who held."""
    held = spans(events, knows=knows, fenced=fenced)
    acts = ("wrote",) if fenced else ("granted", "wrote", "checked")
    moments = [
        event.at
        for event in events
        if event.kind in acts
        and any(span.lane != event.lane and span.covers(event.at) for span in held)
        and any(span.lane == event.lane and span.began <= event.at <= span.ended for span in held)
    ]
    return min(moments, default=None)


def lost_update(history: Sequence[Write]) -> Write | None:
    """The first write that rests on a reading on which another write rested already."""
    seen: set[int] = set()
    for write in history:
        if write.based_on in seen:
            return write
        seen.add(write.based_on)
    return None


def judge(stage: Stage, lock: type[PublishedLock], failure: Failure, seconds: float) -> Outcome:
    """The verdict on one run."""
    events = stage.trace.events()
    history = stage.register.history()
    lost = lost_update(history)
    beside = two_holders(events, knows=lock.knows, fenced=lock.fenced)
    violation = beside
    figure = stage.figure
    if lost is not None:
        verdict = Verdict.LOST_UPDATE
        writes = [event.at for event in events if event.kind == "wrote"]
        # Each accepted write was told of, in the same order.
        violation = writes[history.index(lost)] if len(writes) == len(history) else max(writes, default=beside)
    elif beside is not None:
        verdict = Verdict.TWO_HOLDERS
    elif stage.stuck:
        verdict = Verdict.STUCK
    elif stage.late is not None:
        verdict = Verdict.LATE
        figure = f"{stage.late:.1f} s"
    elif stage.costly:
        verdict = Verdict.COSTLY
    else:
        verdict = Verdict.SAFE
    words = {
        "stuck": stage.stuck,
        "late": f"{stage.late:.1f} s" if stage.late else "",
        "costly": stage.costly,
        "figure": stage.figure,
    }
    cause = lock.because.get(failure.id) if verdict.value == lock.expected.get(failure.id) else None
    cause = (cause or failure.causes.get(verdict.value, verdict.value)).format(**words)
    return Outcome(
        lock.id, failure.id, verdict, first_sentence(cause), figure, cause, failure.cure, failure.link, events, violation, seconds,
        expectation(lock.expected, failure.id), {**stage.facts, "writes": len(history)},
    )  # fmt: skip


def expectation(expected: Mapping[str, str], failure: str) -> Verdict:
    """What the literature says; what it does not name does not apply."""
    return Verdict(expected.get(failure, Verdict.NOT_APPLICABLE.value))


def first_sentence(text: str) -> str:
    """The one line."""
    head = text.partition(". ")[0].rstrip(".")
    return head + "."
