"""`bakery:`, a backend of Lockline's from outside: each claim takes a ticket, and the lines stand on the pages of a book.

A page never changes. Whoever changes a line writes the next page: of all who try, `dict.setdefault` lets one succeed, and the others
begin again on that one. So there is no lock that could be left shut: cut short anywhere, a step has happened or it has not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from lockline import Guarantees, Line, Standing
from lockline.core.backend import Finding, Findings
from lockline.core.claim import Claim, Gone, Grant, Waiting
from lockline.core.rule import admitted
from lockline.core.waiting import Hints
from lockline.runtime import Runtime
from lockline.runtime.fairness import Breather


class Seat(NamedTuple):
    claim: Claim
    ticket: int
    expires: float
    tell: Callable[[str], None]
    weight: int
    capacity: int


class Page(NamedTuple):
    lines: dict[str, tuple[Seat, ...]]
    tickets: int
    next: dict[str, Page]


class Book:
    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.page = now, Page({}, 0, {})

    def last(self) -> Page:
        page = self.page
        while page.next:
            page = page.next["page"]
        self.page = page
        return page

    def line(self, name: str, page: Page | None = None) -> list[Seat]:
        return [seat for seat in (page or self.last()).lines.get(name, ()) if seat.expires > self.now()]

    def step(self, name: str, change: Callable[[list[Seat], int], Any]) -> Any:
        """What `change` answers, given the line, which it may change, and the next ticket."""
        while True:
            page = self.last()
            before, line = page.lines.get(name, ()), self.line(name, page)
            answer = change(line, page.tickets + 1)
            if tuple(line) == before:
                return answer
            new = Page({n: s for n, s in {**page.lines, name: tuple(line)}.items() if s}, page.tickets + 1, {})
            if page.next.setdefault("page", new) is new:
                for seat in {*line[: admitted(line)]} & {*before[admitted(before) :]}:
                    seat.tell(seat.claim.id)
                return answer


class BakeryBackend:
    guarantees = Guarantees("process", True, True, frozenset({"release", "expiry"}), "One process, and no other.")
    reader = None
    books: ClassVar[dict[tuple[int, str], Book]] = {}

    def __init__(self, url: str, runtime: Runtime) -> None:
        self.url, self._runtime, self._breather = url, runtime, Breather(runtime)
        self.forked()

    def forked(self) -> None:
        self._book = self.books.setdefault((os.getpid(), self.url), Book(self._runtime.now))  # a child begins anew

    def report_to(self, hints: Hints) -> None:
        self._tell = hints.heard

    def _place(self, claim: Claim, line: list[Seat]) -> Grant | Waiting | Gone:
        for at in _find(claim, line):
            if at < admitted(line):
                return Grant(line[at].ticket)
            soon = self._book.now() + at / 4  # for a hint that is lost with a step cut short between page and word
            return Waiting(at, min(soon, *(seat.expires for seat in line[:at])))
        return Gone()

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        def change(line: list[Seat], ticket: int) -> Grant | Waiting | None:
            seat = Seat(claim, ticket, self._book.now() + claim.ttl, self._tell, claim.weight, claim.capacity)
            answer = self._place(claim, line if _find(claim, line) else [*line, seat])
            if not _find(claim, line) and (wait or isinstance(answer, Grant)):
                line.append(seat)
            return answer if isinstance(answer, Grant) else Waiting(_find(claim, line)[0]) if wait else None

        await self._breather.breathe()  # on a loop others want their turn, too
        return self._book.step(claim.name, change)  # type: ignore[no-any-return]

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        return self._place(claim, self._book.line(claim.name))

    async def leave(self, claim: Claim, until: float) -> bool:
        return bool(self._book.step(claim.name, lambda line, _: [line.pop(at) for at in _find(claim, line)]))

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        return [await self.leave(claim, until) for claim in claims]

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | None]:
        return [self._book.step(claim.name, partial(self._renew, claim)) for claim in claims]

    def _renew(self, claim: Claim, line: list[Seat], _: int) -> Gone | None:
        for at in _find(claim, line):
            expires = max(line[at].expires, self._book.now() + claim.ttl)
            lighter = min(line[at].claim, claim, key=lambda one: one.weight)
            line[at] = line[at]._replace(claim=lighter, weight=lighter.weight, expires=expires)
            return None
        return Gone()

    async def look(self, name: str, until: float) -> Line:
        line = self._book.line(name)
        return Line(name, tuple(_seen(seat, at < admitted(line), self._book.now()) for at, seat in enumerate(line)))

    async def list(self, prefix: str, until: float) -> list[str]:
        return sorted(name for name in self._book.last().lines if name.startswith(prefix) and self._book.line(name))

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        def change(line: list[Seat], _: int) -> list[Seat]:
            victims = [seat for seat in line[: admitted(line)] if token in (None, seat.ticket)]
            line[:] = [seat for seat in line if seat not in victims]
            return victims

        return len([victim.tell(victim.claim.id) for victim in self._book.step(name, change)])

    async def examine(self, until: float) -> Findings:
        return [Finding("warning", "the book is in this process only", "use local: between processes")]

    async def close(self) -> None: ...

    attend = close


def _find(claim: Claim, line: list[Seat]) -> list[int]:
    return [at for at, seat in enumerate(line) if seat.claim.id == claim.id]


def _seen(seat: Seat, holds: bool, now: float) -> Standing:
    who, sizes, (at, meta), left = seat.claim[1:4], seat.claim[4:7], seat.claim[7:9], seat.expires - now
    return Standing(*who, seat.ticket, holds, *sizes, left, at, at if holds else None, json.loads(meta or "null"))
