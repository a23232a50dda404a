"""A run as a picture: a lane for each client and server, holds as bars, messages as arrows, the violation marked."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from ..verdicts import Outcome, Verdict
from .lanes import Arrow, Bar, LaneMark, Picture, picture, requests_of

WIDTH = 860
LEFT = 112
RIGHT = 16
LANE = 58
TOP = 30
BAR = 22
TICK = 62
"""Between two times that are written out."""
SHORT = 0.05
"""Seconds; of what is over sooner the times are written in milliseconds."""
LAYERS = ("ground", "messages", "bars", "violation", "marks", "words")
"""From below: no arrow crosses a bar, and no line a word."""
STYLE = """
svg.run{--ink:#1c2330;--soft:#6b7686;--line:#d5dbe4;--hold:#2f6fde;--hold-soft:#dfe9fb;--wait:#aab4c2;--bad:#d1242f;--good:#1a7f4b;
--ice:#9aa6b6;--paper:#fff;font:12px system-ui,sans-serif}
@media (prefers-color-scheme:dark){svg.run{--ink:#e6eaf1;--soft:#93a0b3;--line:#303a48;--hold:#6ea0ff;--hold-soft:#22365c;--wait:#566274;
--bad:#ff6b6b;--good:#4cc38a;--ice:#7b8798;--paper:#12161d}}
"""


def svg(outcome: Outcome, *, style: str = STYLE) -> str:
    """The picture, as one element; without a style it takes that of the page around it."""
    drawn = picture(outcome)
    sent = requests_of(outcome.events)
    beneath = dict.fromkeys(drawn.servers, "server") | {
        lane: "1 request" if number == 1 else f"{number} requests" for lane, number in sent.items()
    }
    return drawing(
        drawn,
        words=f"{outcome.lock} under {outcome.failure}: {outcome.verdict.value}. {outcome.cause}",
        violated="update lost" if outcome.verdict is Verdict.LOST_UPDATE else "two inside",
        beneath=beneath,
        style=style,
    )


def drawing(drawn: Picture, *, words: str, violated: str, beneath: Mapping[str, str], style: str = STYLE) -> str:
    """A picture as one element: what it says to who cannot see it, the word at the violation, and what stands beneath the name of each lane."""
    lanes = drawn.lanes + [server for server in drawn.servers if server not in drawn.lanes]
    if not lanes:
        return ""
    return _Drawing(drawn, lanes, violated, beneath).whole(words, style)


class _Drawing:
    def __init__(self, drawn: Picture, lanes: list[str], violated: str, beneath: Mapping[str, str]) -> None:
        self.drawn = drawn
        self.lanes = lanes
        self.violated = violated
        self.beneath = beneath
        self.height = TOP + LANE * len(lanes) + 44
        self.layers: dict[str, list[str]] = {name: [] for name in LAYERS}
        self.labels: dict[str, list[tuple[float, float]]] = {}

    def x(self, at: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * self.drawn.where(at)

    def y(self, lane: str) -> float:
        return TOP + LANE * self.lanes.index(lane) + LANE / 2

    def time(self, at: float) -> str:
        return f"{at:.2f} s" if self.drawn.length >= SHORT else f"{at * 1000:.2f} ms"

    def add(self, text: str, layer: str = "ground") -> None:
        self.layers[layer].append(text)

    def whole(self, words: str, style: str) -> str:
        self.ground()
        for bar in self.drawn.bars:
            self.bar(bar)
        for arrow in self.drawn.arrows:
            self.arrow(arrow)
        for mark in self.drawn.marks:
            if mark.kind in ("read", "wrote", "killed"):
                x = self.x(mark.at)
                self.labels.setdefault(mark.lane + "=", []).append((x - 5, x + 1))
        for mark in self.drawn.marks:
            self.mark(mark)
        self.violation()
        inside = f"<style>{style}</style>" if style else ""
        return (
            f'<svg class="run" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img" aria-label="{escape(words)}">'
            f"{inside}{HATCH}{''.join(part for layer in LAYERS for part in self.layers[layer])}</svg>"
        )

    def ground(self) -> None:
        self.add(f'<rect width="{WIDTH}" height="{self.height}" fill="var(--paper)"/>')
        for lane in self.lanes:
            y = self.y(lane)
            more = self.beneath.get(lane, "")
            self.add(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="var(--line)"/>')
            self.add(f'<text x="12" y="{y - 1}" fill="var(--ink)" font-weight="600">{escape(lane)}</text>')
            self.add(f'<text x="12" y="{y + 14}" fill="var(--soft)" font-size="10">{escape(more)}</text>')
        bottom = TOP + LANE * len(self.lanes)
        free_from = float(LEFT) - 1
        edges = {0.0, self.drawn.length, *(edge for bar in self.drawn.bars for edge in (bar.began, bar.ended))}
        for at in sorted(edges):
            x = self.x(at)
            if x < free_from:
                continue
            free_from = x + TICK
            anchor = "end" if x > WIDTH - 2 * RIGHT else "middle"
            self.add(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{bottom}" stroke="var(--line)" stroke-dasharray="1 5"/>'
            )
            self.add(
                f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="{anchor}" fill="var(--soft)" font-size="10">{self.time(at)}</text>'
            )
        self.add(f'<text x="12" y="{bottom + 16}" fill="var(--soft)" font-size="10">not to scale</text>')

    def bar(self, bar: Bar) -> None:
        x, y = self.x(bar.began), self.y(bar.lane)
        wide = max(2.0, self.x(bar.ended) - x)
        if bar.kind == "waits":
            self.add(
                f'<line x1="{x:.1f}" x2="{x + wide:.1f}" y1="{y}" y2="{y}" stroke="var(--wait)" stroke-width="3" stroke-dasharray="3 3"/>',
                "bars",
            )
        elif bar.kind == "hold":
            self.add(
                f'<rect x="{x:.1f}" y="{y - BAR / 2}" width="{wide:.1f}" height="{BAR}" rx="4" fill="var(--hold-soft)" stroke="var(--hold)"/>',
                "bars",
            )
            if bar.text != "holds":
                self.label(x, y - BAR / 2 - 4, bar.text, "var(--hold)", 10, bar.lane)
        elif bar.kind == "frozen":
            self.add(
                f'<rect x="{x:.1f}" y="{y - BAR / 2}" width="{wide:.1f}" height="{BAR}" rx="4" fill="url(#ice)" stroke="var(--ice)"/>'
                f'<text x="{x + wide / 2:.1f}" y="{y + 4}" text-anchor="middle" fill="var(--ink)" font-size="10" '
                f'paint-order="stroke" stroke="var(--paper)" stroke-width="5">frozen</text>',
                "bars",
            )
        else:
            self.add(
                f'<rect x="{x:.1f}" y="{y - 5}" width="{wide:.1f}" height="10" fill="var(--bad)" opacity=".55"/>',
                "bars",
            )

    def arrow(self, arrow: Arrow) -> None:
        if arrow.source not in self.lanes or arrow.target not in self.lanes:
            return
        down = self.y(arrow.target) > self.y(arrow.source)
        begin = self.y(arrow.source) + (BAR / 2 if down else -4)
        end = self.y(arrow.target) + (-4 if down else BAR / 2)
        x = self.x(arrow.at)
        slant = 5
        whole = arrow.kind in ("request", "reply")
        if not whole:
            end = begin + (end - begin) * 0.55
        dash = ' stroke-dasharray="3 3"' if arrow.kind == "reply" else ""
        colour = "var(--soft)" if whole else "var(--bad)"
        self.add(
            f'<path d="M{x:.1f} {begin:.1f}L{x + slant:.1f} {end:.1f}" stroke="{colour}" fill="none"{dash}'
            f"{' marker-end=' + chr(34) + 'url(#tip)' + chr(34) if whole else ''}/>",
            "messages",
        )
        if not whole:
            cross = f'<text x="{x + slant - 3:.1f}" y="{end + 5:.1f}" fill="var(--bad)" font-weight="700">&#215;</text>'
            self.add(cross, "messages")
        if arrow.text and arrow.kind != "reply":
            self.label(x + slant + 3, begin + (12 if down else -8), arrow.text, "var(--soft)", 9, arrow.source + "'")

    def label(
        self,
        x: float,
        y: float,
        text: str,
        colour: str,
        size: int,
        row: str,
        *,
        until: float = WIDTH - RIGHT,
        on: str = "paper",
    ) -> bool:
        """A word, unless another is there already or there is no room for it."""
        wide = len(text) * size * 0.6
        if until >= WIDTH - RIGHT:
            x = min(x, WIDTH - RIGHT - wide)
        taken = self.labels.setdefault(row, [])
        if x + wide > until + 1 or any(x < right + 4 and left < x + wide + 4 for left, right in taken):
            return False
        taken.append((x, x + wide))
        self.add(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" paint-order="stroke" stroke="var(--{on})" '
            f'stroke-width="3" stroke-linejoin="round">{escape(text)}</text>',
            "words",
        )
        return True

    def mark(self, mark: LaneMark) -> None:
        x, y = self.x(mark.at), self.y(mark.lane)
        high = y - BAR / 2 - 4
        if mark.kind in ("read", "wrote"):
            fill = "var(--hold)" if mark.kind == "wrote" else "var(--paper)"
            self.add(f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="{fill}" stroke="var(--hold)"/>', "marks")
            word = "reads" if mark.kind == "read" else "writes"
            until = self.room_after(mark)
            for text in (f"{word} {mark.text}", mark.text):
                if self.label(x + 6, y + 4, text, "var(--ink)", 10, mark.lane + "=", until=until, on="hold-soft"):
                    break
        elif mark.kind == "fence refused":
            self.add(f'<path d="M{x - 6:.1f} {y - 6}h12v12h-12z" fill="var(--good)"/>', "marks")
            self.label(x - 8, high, f"refused by the fence: {mark.text}", "var(--good)", 10, mark.lane)
        elif mark.kind == "killed":
            cross = f'<path d="M{x - 5:.1f} {y - 5}l10 10m0 -10l-10 10" stroke="var(--bad)" stroke-width="2.5"/>'
            self.add(cross, "marks")
            self.label(x + 8, y + 4, "killed", "var(--bad)", 10, mark.lane + "=")
        elif mark.kind == "clock":
            self.add(
                f'<circle cx="{x:.1f}" cy="{y}" r="7" fill="var(--paper)" stroke="var(--bad)"/>'
                f'<path d="M{x:.1f} {y - 4}v4h3" stroke="var(--bad)" fill="none"/>',
                "marks",
            )
            self.label(x + 10, high, f"clock {mark.text}", "var(--bad)", 10, mark.lane)
        else:
            word = {"refused": mark.text or "refused", "gave up": "knows: over", "up": mark.text or "up"}.get(
                mark.kind, mark.text
            )
            self.label(x, high, word, "var(--soft)", 10, mark.lane)

    def room_after(self, mark: LaneMark) -> float:
        """Where the hold ends, or the freeze begins, in which somebody reads or writes: its words are to end by then."""
        around = [bar for bar in self.drawn.bars if bar.lane == mark.lane and bar.began <= mark.at <= bar.ended]
        ends = [self.x(bar.ended) for bar in around if bar.kind == "hold"]
        later = [bar.began for bar in self.drawn.bars if bar.lane == mark.lane and bar.kind == "frozen"]
        ends += [self.x(began) for began in later if began > mark.at]
        return min(ends, default=float(WIDTH - RIGHT))

    def violation(self) -> None:
        if self.drawn.violation is None:
            return
        x = self.x(self.drawn.violation)
        bottom = TOP + LANE * len(self.lanes)
        anchor = "end" if x > WIDTH - 120 else "middle"
        self.add(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="var(--bad)" stroke-width="2"/>'
            f'<text x="{x:.1f}" y="{TOP - 13}" text-anchor="{anchor}" fill="var(--bad)" font-weight="700">{escape(self.violated)}</text>',
            "violation",
        )


HATCH = (
    '<defs><pattern id="ice" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="7" height="7" fill="var(--paper)" opacity=".5"/><line x1="0" y1="0" x2="0" y2="7" stroke="var(--ice)" stroke-width="3"/></pattern>'
    '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="var(--soft)"/></marker></defs>'
)
