"""What a store has shown until now: its lines, what changed between two looks, and what a browser has to be told.

A browser that is one look behind is told the change, any other one all of it; both are written once for all browsers, and
nothing is kept for one alone. So a slow reader costs nothing but its connection.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, Literal

from ..core.claim import Line, Standing
from . import view
from .survey import Seen

What = Literal["took", "let go", "lost", "evicted", "waits", "gave up"]

REMEMBERED: Final = 30
"""Entries in the history of one line."""
HISTORIES: Final = 2000
"""Lines whose history is kept; whoever had the oldest news goes first."""
LATELY: Final = 40
"""Losses and evictions of all lines."""
CHANGES_KEPT: Final = 16
"""Looks that a browser may be behind before it is told everything again."""
SHOWN_AFTER_LOSS: Final = 15.0
"""A line that was lost and is free now stays in view for so long."""
EVICTIONS_KEPT: Final = 100
"""Evictions whose victim no look has found gone yet: mostly because no look had found it there."""
RENEWED: Final = 0.2
"""A moment of expiry that moved by less was measured anew, not renewed."""
LATE: Final = 0.5
"""Two looks and a clock differ by so much: whoever had less left when it was last seen, and is gone, has run out."""


@dataclass(frozen=True, slots=True)
class BoardNews:
    """One thing that happened to a claim, as far as two looks can tell."""

    at: float
    name: str
    what: What
    who: str
    token: int
    held: float = 0.0
    """For how long it had held, or waited."""
    why: str = ""

    def as_json(self) -> dict[str, Any]:
        told = {
            **view.named(self.name),
            "at": round(self.at, 2),
            "what": self.what,
            "who": view.text(self.who, view.LONGEST_WHO),
            "token": str(self.token),
            "held": round(self.held, 2),
        }
        return {**told, "why": view.text(self.why, 200)} if self.why else told


@dataclass(slots=True)
class KeptLine:
    """One line as it was last seen."""

    line: Line
    at: float
    """When, by the wall clock: what remained then is counted from there."""

    def expires(self, claim: Standing) -> float:
        return self.at + claim.remaining


def encoded(value: Any) -> bytes:
    """JSON in ASCII on one line, whatever a name contains."""
    return json.dumps(value, separators=(",", ":")).encode()


class Board:
    """The lines of one store as its looks have shown them. One writer, any number of readers, any threads."""

    def __init__(self) -> None:
        # Anywhere: a browser that comes from another process, or from before a restart, has no version of this board.
        self.version = secrets.randbelow(1 << 40) + 1
        self._now = 0.0
        self._mutex = threading.Lock()
        self._lines: dict[str, KeptLine] = {}
        self._changes: deque[tuple[int, bytes]] = deque(maxlen=CHANGES_KEPT)
        self._whole: tuple[int, bytes] | None = None
        self._histories: dict[str, deque[BoardNews]] = {}
        self._lately: deque[BoardNews] = deque(maxlen=LATELY)
        self._freed: dict[str, float] = {}
        """Lines that are free after a loss, and until when they are shown."""
        self._evicted: dict[tuple[str, int], str] = {}
        """Whom this page took a lock away from, and why: the next look finds them gone."""
        self._status: dict[str, Any] = {"state": "new"}
        self._reached = False
        """Whether the store was ever seen."""
        self._compares = False

    # -- what the looks bring --------------------------------------------------------------------------

    def take(self, seen: Seen, now: float) -> list[BoardNews]:
        """Another look; what has happened since the one before."""
        with self._mutex:
            news: list[BoardNews] = []
            changed: list[str] = []
            renewed: list[tuple[str, list[float]]] = []
            for name, line in seen.lines.items():
                before = self._lines.get(name)
                news += self._compare(name, before, line, now)
                if before is None or _shape(before.line) != _shape(line):
                    changed.append(name)
                elif any(_moved(before, old, now, new) for old, new in _holders(before.line, line)):
                    renewed.append((name, [round(now + held.remaining, 2) for held in line.holders]))
                self._lines[name] = KeptLine(line, now)
            for name in [name for name in self._lines if name not in seen.names]:
                kept = self._lines[name]
                if kept.line.claims:
                    news += self._compare(name, kept, Line(name), now)
                    changed.append(name)
                    self._lines[name] = KeptLine(Line(name), now)
            news.sort(key=attrgetter("at"))
            self._note(news, now)
            gone = self._sweep(now)
            self._reached = True
            self._status = {
                "state": "live", "took": round(seen.took, 3), "total": seen.total, "unreadable": seen.unreadable,
            }  # fmt: skip
            if not self._compares:
                # The first look, or the first after a while: everybody is told everything, which is no change to write down.
                self._compares, changed, renewed = True, [], []
                self._changes.clear()
                self.version += 1
            self._tell(now, [name for name in changed if name not in gone], gone, renewed, news)
            return news

    def fail(self, problem: str, now: float) -> bool:
        """A look that was not answered; whether that is news. What was seen stays in view, and says how old it is."""
        with self._mutex:
            since = self._status.get("since")
            news = since is None
            since = now if since is None else since
            self._status = {
                "state": "silent", "since": round(since, 2), "problem": view.text(problem, 400), "reached": self._reached,
            }  # fmt: skip
            # What happens while nobody sees it happens at a time that nobody knows.
            self._compares = False
            self._tell(now, [], [], [], [])
            return news

    def pause(self) -> None:
        """Nobody looks from now on: what the next look finds changed happened at a time that nobody knows."""
        with self._mutex:
            self._compares = False

    def evicted(self, name: str, token: int, why: str) -> None:
        """This page takes the lock away from that holder; without a reason it did not after all."""
        with self._mutex:
            if not why:
                self._evicted.pop((name, token), None)
                return
            if len(self._evicted) >= EVICTIONS_KEPT:
                self._evicted.clear()
            self._evicted[name, token] = why

    # -- what the browsers ask -------------------------------------------------------------------------

    def since(self, version: int) -> tuple[int, list[bytes]]:
        """What to tell whoever has seen this version, and which one it has seen then."""
        with self._mutex:
            if version == self.version:
                return version, []
            missed = [change for number, change in self._changes if number > version]
            if version and len(missed) == self.version - version:
                return self.version, missed
            return self.version, [self._all()]

    def detail(self, name: str) -> bytes:
        """One line, opened: everybody in it, and its history. No question to the store."""
        with self._mutex:
            kept = self._lines.get(name)
            shown = view.detail(kept.line, kept.at) if kept else view.detail(Line(name), 0.0)
            history = [news.as_json() for news in reversed(self._histories.get(name, ()))]
            return encoded({**shown, "history": history})

    # -- inside ----------------------------------------------------------------------------------------

    def _all(self) -> bytes:
        if self._whole is None or self._whole[0] != self.version:
            lines = [view.line(kept.line, kept.at) for kept in self._lines.values()]
            lately = [news.as_json() for news in self._lately]
            told = {"v": self.version, "now": self._now, "status": self._status, "all": lines, "lately": lately}
            self._whole = self.version, encoded(told)
        return self._whole[1]

    def _tell(
        self,
        now: float,
        changed: list[str],
        gone: list[str],
        renewed: list[tuple[str, list[float]]],
        news: list[BoardNews],
    ) -> None:
        self.version += 1
        self._now = round(now, 3)
        told: dict[str, Any] = {"v": self.version, "now": self._now, "status": self._status}
        if changed:
            told["lines"] = [view.line(self._lines[name].line, now) for name in changed]
        if gone:
            told["gone"] = gone
        if renewed:
            told["renewed"] = renewed
        if loud := [one.as_json() for one in news if one.what in ("took", "lost", "evicted")]:
            told["news"] = loud
        self._changes.append((self.version, encoded(told)))

    def _compare(self, name: str, before: KeptLine | None, line: Line, now: float) -> Iterable[BoardNews]:
        """What happened to whom between two looks."""
        if not self._compares:
            return
        old = {claim.id: claim for claim in before.line.claims} if before else {}
        new = {claim.id for claim in line.claims}
        fresh: list[BoardNews] = []
        for claim in line.claims:
            was = old.get(claim.id)
            # After the look that did not see it yet: not every store knows the moment, and clocks differ.
            began = min(max(claim.began, before.at if before else claim.began), now)
            if claim.holds and not (was and was.holds):
                fresh.append(BoardNews(began, name, "took", claim.owner, claim.token))
            elif not claim.holds and was is None:
                fresh.append(BoardNews(began, name, "waits", claim.owner, claim.token))
        taken = min((one.at for one in fresh if one.what == "took"), default=now)
        for claim_id, claim in old.items():
            if claim_id not in new and before is not None:
                # One that held alone was gone when the next one took it.
                ended = taken if claim.holds and claim.weight == claim.capacity else now
                yield self._gone(name, before, claim, now, ended)
        yield from fresh

    def _gone(self, name: str, before: KeptLine, claim: Standing, now: float, ended: float) -> BoardNews:
        what: What
        why = self._evicted.pop((name, claim.token), "")
        # A healthy holder never has less than two thirds of its ttl: one that had them when it was last seen may well have been
        # renewed since, and let go.
        failing = claim.remaining < claim.ttl / 2
        ran_out = failing and before.expires(claim) <= now + min(LATE, claim.ttl / 10)
        if why:
            what = "evicted"
        elif ran_out:
            what, why = "lost", f"not renewed for its ttl of {claim.ttl:g} s"
        else:
            what = "let go"
        if not claim.holds and what != "evicted":
            what = "gave up"
        return BoardNews(ended, name, what, claim.owner, claim.token, max(0.0, ended - claim.began), why)

    def _note(self, news: list[BoardNews], now: float) -> None:
        for one in news:
            if one.what in ("waits", "gave up"):
                continue
            history = self._histories.pop(one.name, None) or deque(maxlen=REMEMBERED)
            history.append(one)
            self._histories[one.name] = history
            if one.what in ("lost", "evicted"):
                self._lately.append(one)
                self._freed[one.name] = now + SHOWN_AFTER_LOSS
        while len(self._histories) > HISTORIES:
            del self._histories[next(iter(self._histories))]

    def _sweep(self, now: float) -> list[str]:
        """Forget the lines that are free, but not those that were lost just now; the names of those that went."""
        self._freed = {name: until for name, until in self._freed.items() if until > now}
        gone = [name for name, kept in self._lines.items() if not kept.line.claims and name not in self._freed]
        for name in gone:
            del self._lines[name]
        return gone


def _shape(line: Line) -> list[tuple[str, bool, int]]:
    """What makes two looks at a line the same but for the time."""
    return [(claim.id, claim.holds, claim.weight) for claim in line.claims]


def _holders(before: Line, line: Line) -> Iterable[tuple[Standing, Standing]]:
    return zip(before.holders, line.holders, strict=True)


def _moved(before: KeptLine, old: Standing, now: float, new: Standing) -> bool:
    return now + new.remaining > before.expires(old) + RENEWED
