"""Pictures of a run, as SVG that stands in a page by itself: plots over time, and the time line of a violation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from ..draw.lanes import Bar, LaneMark, Picture, scale
from ..draw.svg import drawing
from ..trace import short
from .history import Fault, History, Operation
from .verdict import EXCLUSION, ORDER, PERMITS, READERS, RECOVERY, RISING, UNIQUE, WAKE_UP, Violation

WIDTH: Final = 860
LEFT: Final = 90


def _svg(height: int, label: str, *parts: str) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(label)}</title>{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(text)}</text>'


def plot(values: Sequence[float], faults: Sequence[Fault], began: float, label: str, unit: str) -> str:
    """Values per second as a line, with the faults behind it."""
    high, bottom, height = 14, 150, 180
    seconds = max(len(values), 1)
    most = max([*values, 1e-9])

    def across(moment: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * min(max(moment, 0.0), seconds) / seconds

    parts = []
    for fault in faults:
        begin, end = across(fault.begun - began), across(fault.ended - began)
        parts.append(
            f'<rect class="fault" x="{begin:.1f}" y="{high}" width="{max(end - begin, 2):.1f}" height="{bottom - high}">'
            f"<title>{escape(f'{fault.kind} {fault.detail}'.strip())}</title></rect>"
        )
    points = " ".join(
        f"{across(second + 0.5):.1f},{bottom - (bottom - high) * value / most:.1f}"
        for second, value in enumerate(values)
    )
    shown = f"{most:.2f}".rstrip("0").rstrip(".") if most < 100 else f"{most:.0f}"
    parts += [
        f'<polyline class="line" points="{points}"/>',
        f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{WIDTH - 10}" y2="{bottom}"/>',
        _text(LEFT - 6, high + 10, f"{shown} {unit}", 'text-anchor="end"'),
        _text(LEFT - 6, bottom, "0", 'text-anchor="end"'),
        _text(LEFT, bottom + 18, "0 s"),
        _text(WIDTH - 10, bottom + 18, f"{seconds} s", 'text-anchor="end"'),
    ]
    return _svg(height, label, *parts)


WORDS: Final = {
    EXCLUSION: "two inside",
    READERS: "too many inside",
    PERMITS: "too many inside",
    UNIQUE: "token twice",
    RISING: "token fell",
    ORDER: "overtaken",
    WAKE_UP: "nobody is told",
    RECOVERY: "nobody holds",
}
"""What stands at the instant of a violation."""


def time_line(promise: str, violation: Violation, history: History) -> str:
    """The operations that took part, a lane each, as the lab draws them: the wait, the hold with its token, what was done to the worker."""
    if not violation.operations:
        return ""
    last = max([violation.at, *(max(one.until, one.got, one.ended) for one in violation.operations)])
    first = min(one.got or one.begun for one in violation.operations)
    # A long wait would leave no room for what matters.
    zero = max(min(one.begun for one in violation.operations), first - max(0.02, last - violation.at))
    drawn = Picture(violation=violation.at - zero, length=max(1e-4, last - zero))
    beneath = {}
    for one in violation.operations:
        drawn.lanes.append(one.op)
        beneath[one.op] = f"worker {one.worker}, {one.kind}"
        drawn.bars += _bars(one, history.faults, zero, last)
        drawn.marks += [
            LaneMark(one.op, fault.begun - zero, "killed", "")
            for fault in history.faults
            if fault.worker == one.worker and fault.kind.startswith("kill") and zero <= fault.begun <= last
        ]
    drawn.knots = scale(drawn)
    return drawing(drawn, words=violation.text, violated=WORDS.get(promise, promise), beneath=beneath)


def _bars(one: Operation, faults: Sequence[Fault], zero: float, last: float) -> Iterator[Bar]:
    def bar(began: float, ended: float, kind: str, text: str = "") -> Bar:
        return Bar(one.op, max(0.0, began - zero), max(0.0, min(ended, last) - zero), kind, text)

    yield bar(one.begun, one.got or one.ended or last, "waits")
    if one.until:
        yield bar(one.got, one.until, "hold", f"token {short(one.token)}")
    for fault in faults:
        if fault.worker == one.worker and fault.kind.startswith("freeze") and fault.touches(zero, last):
            yield bar(fault.begun, fault.ended, "frozen")
