"""What a picture of a run has to show, computed once for the page and for the terminal."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from ..trace import TraceEvent, short
from ..verdicts import Outcome, Verdict

POLLS = 3
"""So many refused requests in a row are shown; the rest is a number."""
MESSAGES = 80
A_NUMBER = 0.035
"""Of the picture's width."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that lasts."""

    lane: str
    began: float
    ended: float
    kind: str
    """hold · frozen · down · waits"""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Arrow:
    """A message."""

    at: float
    source: str
    target: str
    text: str
    kind: str
    """request · reply · lost · held"""


@dataclass(frozen=True, slots=True)
class LaneMark:
    """A moment."""

    lane: str
    at: float
    kind: str
    text: str


@dataclass(slots=True)
class Picture:
    """Lanes with what is on them; times from zero."""

    lanes: list[str] = field(default_factory=list)
    servers: list[str] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    marks: list[LaneMark] = field(default_factory=list)
    violation: float | None = None
    length: float = 1.0
    knots: list[tuple[float, float]] = field(default_factory=list)
    """Moments, and where they stand between 0 and 1: long waits are shortened, or what matters would be a dot at the edge."""

    def where(self, at: float) -> float:
        """Where a moment stands, from 0 to 1."""
        at = min(max(at, 0.0), self.length)
        right = min(bisect_right(self.knots, (at, 2.0)), len(self.knots) - 1)
        (begin, left_at), (end, right_at) = self.knots[right - 1], self.knots[right]
        return left_at + (right_at - left_at) * (at - begin) / ((end - begin) or 1.0)


def picture(outcome: Outcome) -> Picture:
    """The picture of one run."""
    events = [event for event in outcome.events if event.text != "hello"]
    drawn = Picture()
    if not events:
        return drawn
    zero = next((event.at for event in events if event.kind == "asked"), events[0].at)
    last = max(event.at for event in events)
    drawn.length = max(0.05, last - zero)
    drawn.lanes, drawn.servers = who_is_there(events)
    drawn.bars = [*lasting(events, zero, last)]
    drawn.arrows = messages(events, zero)
    drawn.marks = [
        LaneMark(event.lane, max(0.0, event.at - zero), event.kind, event.text)
        for event in events
        if event.kind in ("read", "wrote", "fence refused", "killed", "clock", "refused", "gave up", "at", "note", "up")
    ]
    if outcome.violation is not None and outcome.verdict in (Verdict.LOST_UPDATE, Verdict.TWO_HOLDERS):
        drawn.violation = outcome.violation - zero
    drawn.knots = scale(drawn)
    return drawn


def who_is_there(events: Sequence[TraceEvent]) -> tuple[list[str], list[str]]:
    """The clients, and below them the servers, each in the order of their names."""
    servers = {event.lane for event in events if event.kind in ("reply", "lost", "down", "up")}
    servers |= {event.to for event in events if event.kind in ("request", "held back")}
    # A clock is either's; and whoever else does something is a client.
    clients = {event.lane for event in events if event.kind != "clock"} - servers
    stepped = {event.lane for event in events} - clients - servers
    return sorted(clients), sorted(servers | stepped)


def scale(drawn: Picture) -> list[tuple[float, float]]:
    """A gap between two moments takes the root of its length: a wait of two seconds is longer than one of 20 ms, but ten times only."""
    moments = {0.0, drawn.length}
    moments.update(mark.at for mark in drawn.marks if 0 <= mark.at <= drawn.length)
    # Messages stand apart too, as long as they are few enough to be told apart.
    moments.update(arrow.at for arrow in drawn.arrows[:MESSAGES] if arrow.at <= drawn.length)
    moments.update(edge for bar in drawn.bars for edge in (bar.began, bar.ended) if 0 <= edge <= drawn.length)
    ordered = sorted(moments)
    gaps = [(later - earlier) ** 0.5 for earlier, later in pairwise(ordered)]
    # Behind each reading and each writing there is room for its number.
    told = {mark.at for mark in drawn.marks if mark.kind in ("read", "wrote")}
    least = sum(gaps) * A_NUMBER
    gaps = [max(gap, least) if earlier in told else gap for earlier, gap in zip(ordered, gaps, strict=False)]
    whole = sum(gaps) or 1.0
    return list(zip(ordered, [0.0, *(so_far / whole for so_far in accumulate(gaps))], strict=True))


def lasting(events: Sequence[TraceEvent], zero: float, last: float) -> list[Bar]:
    """Holds, freezes, waits and the absence of servers."""
    ends = {
        "hold": ("letting go", "killed", "gave up"),
        "frozen": ("woke", "killed"),
        "down": ("up",),
        "waits": ("granted", "refused", "killed"),
    }
    begins = {"granted": "hold", "froze": "frozen", "down": "down", "asked": "waits"}
    open_now: dict[tuple[str, str], TraceEvent] = {}
    bars = []

    def close(kind: str, lane: str, at: float) -> None:
        began = open_now.pop((kind, lane), None)
        if began is not None:
            text = f"token {short(began.token)}" if began.token is not None else ("holds" if kind == "hold" else "")
            bars.append(Bar(lane, max(0.0, began.at - zero), at - zero, kind, text))

    for event in events:
        for kind, words in ends.items():
            if event.kind in words:
                close(kind, event.lane, event.at)
        if event.kind in begins:
            open_now[begins[event.kind], event.lane] = event
    for kind, lane in list(open_now):
        close(kind, lane, last)
    return sorted(bars, key=lambda bar: (bar.kind != "down", bar.kind != "hold", bar.began))


def messages(events: Sequence[TraceEvent], zero: float) -> list[Arrow]:
    """Requests and replies; of a client that asks again and again only the first few, and a number."""
    arrows: list[Arrow] = []
    run: dict[str, int] = {}
    servers = len({event.to for event in events if event.kind == "request"}) or 1
    greeted: set[tuple[str, str]] = set()
    """Between whom more has passed than a connection's first words, which are left out."""
    kinds = {"request": "request", "held back": "held", "reply": "reply", "lost": "lost"}
    for event in events:
        if event.kind in ("granted", "letting go", "wrote", "froze", "woke", "at"):
            run.pop(event.lane, None)
        if event.kind not in kinds or event.at < zero:
            continue
        asks = event.kind in ("request", "held back")
        client, server = (event.lane, event.to) if asks else (event.to, event.lane)
        if asks:
            greeted.add((client, server))
        elif (client, server) not in greeted:
            continue
        run[client] = run.get(client, 0) + 1
        if run[client] > 2 * POLLS * servers and event.kind != "lost":
            continue
        arrows.append(Arrow(event.at - zero, event.lane, event.to, event.text, kinds[event.kind]))
    return arrows


def requests_of(events: Sequence[TraceEvent]) -> dict[str, int]:
    """How many requests each client sent."""
    sent: dict[str, int] = {}
    for event in events:
        if event.kind in ("request", "held back") and event.text != "hello":
            sent[event.lane] = sent.get(event.lane, 0) + 1
    return sent
