"""Pictures of a run, as SVG that stands in a page by itself: plots over time, and the time line of a violation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Final

from .history import Fault, History, Operation
from .verdict import Violation

WIDTH: Final = 860
LEFT: Final = 90
_FREEZE: Final = (
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="#f3e3c3"/><line x1="0" y1="0" x2="0" y2="6" stroke="#b58a2b" stroke-width="2"/></pattern>'
)


def _svg(height: int, label: str, *parts: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}" xmlns="http://www.w3.org/2000/svg">'
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

    parts = [_FREEZE]
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


def time_line(violation: Violation, history: History) -> str:
    """The operations that took part, a lane each: its wait, its hold with the token, what was done to its worker, and the instant."""
    lanes = violation.operations
    if not lanes:
        return ""
    begin = min(one.begun for one in lanes)
    end = max([violation.at, *(max(one.until, one.got, one.ended) for one in lanes)])
    # A long wait would leave no room for what matters.
    begin = max(begin, min(one.got or one.begun for one in lanes) - max(0.02, end - violation.at))
    margin = (end - begin) * 0.04 + 1e-4
    begin, end = begin - margin, end + margin

    def across(moment: float) -> float:
        return LEFT + (WIDTH - LEFT - 10) * (min(max(moment, begin), end) - begin) / (end - begin)

    height = 40 + 46 * len(lanes)
    parts = [_FREEZE]
    for number, one in enumerate(lanes):
        parts += _lane(one, 12 + 46 * number, across, history.faults, (begin, end))
    at = across(violation.at)
    parts += [
        f'<line class="instant" x1="{at:.1f}" y1="4" x2="{at:.1f}" y2="{height - 22}"/>',
        _text(at, height - 8, f"{violation.at - history.began:.6f} s", 'text-anchor="middle"'),
    ]
    return _svg(height, violation.text, *parts)


def _lane(
    one: Operation, top: int, across: Callable[[float], float], faults: Sequence[Fault], shown: tuple[float, float]
) -> list[str]:
    parts = [
        _text(LEFT - 8, top + 14, f"worker {one.worker}", 'text-anchor="end"'),
        _text(LEFT - 8, top + 28, one.kind, 'text-anchor="end" class="small"'),
    ]
    answered = one.got or one.ended or shown[1]
    parts.append(_bar("wait", across(one.begun), across(answered), top + 9, 8, f"{one.op} waits"))
    if one.until:
        parts.append(
            _bar(
                "hold",
                across(one.got),
                across(one.until),
                top + 2,
                22,
                f"{one.op} held, and said valid to the end of this",
            )
        )
        parts.append(_text(across(one.got) + 3, top + 36, f"token {one.token}", 'class="small"'))
    for fault in faults:
        if fault.worker == one.worker and fault.touches(*shown):
            parts.append(
                _bar(
                    "frozen", across(fault.begun), across(fault.ended), top, 26, f"{fault.kind} {fault.detail}".strip()
                )
            )
    return parts


def _bar(kind: str, begin: float, end: float, top: int, height: int, label: str) -> str:
    return (
        f'<rect class="{kind}" x="{begin:.1f}" y="{top}" width="{max(end - begin, 2):.1f}" height="{height}">'
        f"<title>{escape(label)}</title></rect>"
    )
