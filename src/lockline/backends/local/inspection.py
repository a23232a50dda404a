"""Lines as everybody can see them: looking at one, listing them, and the operator's eviction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

from ...core.claim import Line, Standing
from ...core.rule import admitted
from .commands import DELETE, SqliteSteps, ToldClient, let_in, walk

WHOLE_LINE: Final = (
    "SELECT ticket, id, owner, kind, weight, capacity, ttl, expires, arrived, granted, meta "
    "FROM claims WHERE name = ? AND expires > ? ORDER BY ticket"
)
ALL_LINES: Final = (
    "SELECT name, ticket, id, owner, kind, weight, capacity, ttl, expires, arrived, granted, meta "
    "FROM claims WHERE expires > ? ORDER BY name, ticket"
)
"""One pass over the file: it holds what lives and little else, so a question per name would cost more."""
NAMES: Final = "SELECT DISTINCT name FROM claims WHERE expires > ? ORDER BY name"


class Whole(NamedTuple):
    """All that the file has of a claim for people to read."""

    ticket: int
    id: str
    owner: str
    kind: str
    weight: int
    capacity: int
    ttl: float
    expires: float
    arrived: float
    granted: float | None
    meta: str


def look(steps: SqliteSteps, name: str) -> Line:
    """The whole line."""
    now = steps.now()
    rows = steps.read(lambda db: [Whole(*row) for row in db.execute(WHOLE_LINE, (name, now))])
    return _line(name, rows, now)


def look_many(steps: SqliteSteps, names: Sequence[str]) -> list[Line]:
    """These lines."""
    now = steps.now()
    rows: dict[str, list[Whole]] = {name: [] for name in names}

    def work(db: sqlite3.Connection) -> None:
        for line in rows.values():
            line.clear()  # a read that has to be made again begins again
        for name, *row in db.execute(ALL_LINES, (now,)):
            if name in rows:
                rows[name].append(Whole(*row))

    steps.read(work)
    return [_line(name, rows[name], now) for name in names]


def _line(name: str, rows: list[Whole], now: float) -> Line:
    holders = admitted(rows)
    return Line(name, tuple(_standing(row, at < holders, now) for at, row in enumerate(rows)))


def _standing(row: Whole, holds: bool, now: float) -> Standing:
    return Standing(
        id=row.id, owner=row.owner, kind=row.kind, token=row.ticket, holds=holds, weight=row.weight, capacity=row.capacity, ttl=row.ttl,
        remaining=row.expires - now, enqueued_at=row.arrived, granted_at=(row.granted or row.arrived) if holds else None,
        meta=json.loads(row.meta) if row.meta else None,
    )  # fmt: skip


def names(steps: SqliteSteps, prefix: str) -> list[str]:
    """The names that have a live claim."""
    rows = steps.read(lambda db: db.execute(NAMES, (steps.now(),)).fetchall())
    return [name for (name,) in rows if name.startswith(prefix)]


def evict(steps: SqliteSteps, name: str, token: int | None) -> tuple[list[ToldClient], list[ToldClient]]:
    """Remove the holders, or the one with that token; the victims, and whom to wake."""

    def work(db: sqlite3.Connection) -> tuple[list[ToldClient], list[ToldClient]]:
        now = steps.now()
        inside, _ = walk(db, name, now)
        victims = [row for row in inside if token is None or row.ticket == token]
        db.executemany(DELETE, [(name, row.ticket) for row in victims])
        return [ToldClient(row.reached_at, row.id) for row in victims], let_in(db, name, inside, now)

    return steps.step(work)
