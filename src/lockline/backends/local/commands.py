"""The steps of one client on the lines of one SQLite file. Every method is one atomic step."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ...core.claim import DETACHED, Claim, Gone, Grant, Waiting
from ...core.rule import Tally
from .connection import SqliteConnections
from .errors import Busy
from .schema import prepare, raise_ceiling
from .target import make_private

SWEEP_EVERY: Final = 60.0
"""How often this client removes what has run out on names that nobody uses again."""

STAYS: Final = "!"
"""Stands before the client of a claim that stays until its time is over: so it is nobody's, when somebody's death is looked into."""

COLUMNS: Final = "ticket, id, client, pid, weight, capacity, expires, granted"
# Two statements: RETURNING alone would cost more than the rest of an acquire.
LAST_TICKET: Final = "SELECT last, ceiling FROM counter"
NEXT_TICKET: Final = "UPDATE counter SET last = ?"
LINE: Final = f"SELECT {COLUMNS} FROM claims WHERE name = ? ORDER BY ticket"
AHEAD: Final = "SELECT count(*), max(ticket), id FROM claims WHERE name = ? AND ticket < ? AND expires > ?"
"""How many are ahead, and the last of them: beside a max() SQLite gives the columns of the row that has it."""
BEFORE: Final = (
    f"SELECT {COLUMNS} FROM claims WHERE name = ? AND ticket < ? AND expires > ? ORDER BY ticket DESC LIMIT 1"
)
# By id too: a ticket whose step was undone may have become somebody else's.
MINE: Final = "SELECT expires FROM claims WHERE name = ? AND ticket = ? AND id = ?"
DELETE_MINE: Final = "DELETE FROM claims WHERE name = ? AND ticket = ? AND id = ?"
INSERT: Final = "INSERT INTO claims VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
DELETE: Final = "DELETE FROM claims WHERE name = ? AND ticket = ?"
GRANTED: Final = "UPDATE claims SET granted = ? WHERE name = ? AND ticket = ?"
# Never creates, never shortens, never revives what has run out.
RENEW: Final = "UPDATE claims SET expires = max(expires, ?) WHERE name = ? AND ticket = ? AND id = ? AND expires > ?"
LIGHTEN: Final = "UPDATE claims SET weight = ?, kind = ? WHERE name = ? AND ticket = ? AND weight > ?"
MOVED: Final = "SELECT ticket, weight FROM claims WHERE name = ? AND id = ? AND ticket > ?"
OF_CLIENT: Final = "SELECT DISTINCT name FROM claims WHERE client = ?"
SWEEP: Final = "DELETE FROM claims WHERE expires <= ?"


class ClaimRow(NamedTuple):
    """One claim as the rule and the wake-ups need it."""

    ticket: int
    id: str
    client: str
    pid: int
    weight: int
    capacity: int
    expires: float
    granted: float | None

    @property
    def reached_at(self) -> str:
        """The socket that its client listens on."""
        return self.client.removeprefix(STAYS)


class ToldClient(NamedTuple):
    """Whom to wake after a step was committed."""

    client: str
    claim_id: str


class Entered(NamedTuple):
    """What is known of a claim that was entered here."""

    ticket: int
    weight: int


class SqliteSteps:
    """The steps of one client on the file, from any thread, also while another of the same thread is suspended."""

    def __init__(self, file: Path, now: Callable[[], float]) -> None:
        self.file = file
        self.now = now
        self._swept = 0.0
        self._places: dict[str, Entered] = {}
        """Also of a claim whose step was then undone: so a claim is always told by its id as well."""
        self._connections = SqliteConnections(file, lambda db: prepare(db, file), self._places.clear)
        self.step = self._connections.step
        self.read = self._connections.read

    def make(self) -> Path:
        """Make the file if it is missing, refuse it where it cannot work; its real path, whatever links led to it."""
        make_private(self.file)
        return Path(os.path.realpath(self.file))

    def close(self) -> None:
        """Let go of the file."""
        self._connections.close()

    def forked(self) -> None:
        """In a child: nothing of what the parent entered is ours."""
        self._places.clear()

    def stands(self) -> bool:
        """Whether something that was entered here may still be in the file."""
        return bool(self._places)

    # -- steps -------------------------------------------------------------------------------------

    def enter(self, claim: Claim, wait: bool, client: str, pid: int) -> tuple[Grant | Waiting | None, list[ClaimRow]]:
        """Stand at the end of the line; the answer, and who is in the way."""
        if claim.id in self._places:
            answer = self.standing(claim)[0]
            return (answer if not isinstance(answer, Gone) else Waiting(0)), []
        try:
            return self.step(lambda db: self._enter(db, claim, wait, client, pid))
        except CeilingReached:
            self.read(raise_ceiling)
            return self.step(lambda db: self._enter(db, claim, wait, client, pid))

    def _enter(
        self, db: sqlite3.Connection, claim: Claim, wait: bool, client: str, pid: int
    ) -> tuple[Grant | Waiting | None, list[ClaimRow]]:
        now = self.now()
        tally = Tally()
        inside, first_out = walk(db, claim.name, now, tally)
        fits = first_out is None and tally.admits(claim)
        if not fits and not wait:
            return None, inside
        last, ceiling = db.execute(LAST_TICKET).fetchone()
        if last >= ceiling:
            raise CeilingReached
        ticket = last + 1
        db.execute(NEXT_TICKET, (ticket,))
        wall = time.time()
        db.execute(
            INSERT,
            (
                claim.name, ticket, claim.id, STAYS + client if claim.stays else client, pid, claim.owner, claim.kind, claim.weight, claim.capacity,
                claim.ttl, now + claim.ttl, claim.since, wall if fits else None, claim.meta,
            ),
        )  # fmt: skip
        # Before the commit: wherever we are cut short, what may stand in the file can be found again.
        self.note(claim.id, ticket, claim.weight)
        if fits:
            return Grant(ticket), []
        # In one question: all who come or go wait for the end of this transaction.
        ahead, _, before = db.execute(AHEAD, (claim.name, ticket, now)).fetchone()
        return Waiting(ahead, ticket=ticket, behind=before), inside

    def standing(self, claim: Claim) -> tuple[Grant | Waiting | Gone, list[ClaimRow]]:
        """Where the claim stands, and who is in its way: the holders if it is next, else the one before it."""
        answer, in_the_way, unmarked = self.read(lambda db: self._standing(db, claim, self.now()))
        if unmarked:
            try:
                self.step(lambda db: db.execute(GRANTED, (time.time(), claim.name, unmarked)))
            except Busy:
                pass  # since when it holds is for people; the grant stands without it
        return answer, in_the_way

    def _standing(
        self, db: sqlite3.Connection, claim: Claim, now: float
    ) -> tuple[Grant | Waiting | Gone, list[ClaimRow], int]:
        ticket = self._ticket(claim)
        mine = None if ticket is None else db.execute(MINE, (claim.name, ticket, claim.id)).fetchone()
        if ticket is not None and mine is None and self._has_moved(db, claim):
            return self._standing(db, claim, now)
        if ticket is None or mine is None or mine[0] <= now:
            return Gone(), [], 0
        inside, first_out = walk(db, claim.name, now)
        for row in inside:
            if row.ticket == ticket:
                return Grant(ticket), [], 0 if row.granted else ticket
        if first_out is not None and first_out.ticket == ticket:
            return Waiting(len(inside), ticket=ticket, behind=inside[-1].id), inside, 0
        before = [ClaimRow._make(row) for row in db.execute(BEFORE, (claim.name, ticket, now))]
        return Waiting(len(inside) + 1, ticket=ticket, behind=before[0].id if before else ""), before, 0

    def leave(self, claim: Claim) -> tuple[bool, list[ToldClient]]:
        """Remove this claim; whether it was there, and whom to wake."""
        if claim.id not in self._places and not claim.id.startswith(DETACHED):
            return False, []
        return self.step(lambda db: self._leave(db, claim))

    def leave_all(self, claims: Sequence[Claim]) -> tuple[list[bool], list[ToldClient]]:
        """Remove these claims in one transaction; whether each was there, and whom to wake."""

        def work(db: sqlite3.Connection) -> tuple[list[bool], list[ToldClient]]:
            left = [self._leave(db, claim) for claim in claims]
            # Who was let in by one of them may itself have been among the next.
            gone = {claim.id for claim in claims}
            return [there for there, _ in left], [one for _, told in left for one in told if one.claim_id not in gone]

        return self.step(work)

    def _leave(self, db: sqlite3.Connection, claim: Claim) -> tuple[bool, list[ToldClient]]:
        now = self.now()
        ticket = self._ticket(claim)
        if ticket is None:
            # What keeps a place for somebody else is not remembered here.
            found = claim.id.startswith(DETACHED) and self._has_moved(db, claim)
            return self._leave(db, claim) if found else (False, [])
        inside, first_out = walk(db, claim.name, now)
        behind = first_out is not None and ticket > first_out.ticket
        # The walk ends at the first who waits: whether one behind it has run out is to be asked for.
        mine = db.execute(MINE, (claim.name, ticket, claim.id)).fetchone() if behind else None
        removed = db.execute(DELETE_MINE, (claim.name, ticket, claim.id)).rowcount > 0
        if not removed and self._has_moved(db, claim):
            return self._leave(db, claim)
        there = removed and (mine is None or mine[0] > now)
        # Nobody waits, or the leaver was not the one in the way of the first: nothing changes for the others.
        if first_out is None:
            return there, []
        return there, let_in(db, claim.name, inside, now)

    def renew(self, claims: Sequence[Claim]) -> tuple[list[Gone | None], list[ToldClient]]:
        """Give each its ttl again; what became of each, and whom to wake."""
        fates, told, lighter = self.step(lambda db: self._renew(db, claims))
        for claim in lighter:
            place = self._places.get(claim.id)
            if place is not None:
                self._places[claim.id] = place._replace(weight=claim.weight)
        return fates, told

    def _renew(
        self, db: sqlite3.Connection, claims: Sequence[Claim]
    ) -> tuple[list[Gone | None], list[ToldClient], list[Claim]]:
        now = self.now()
        fates: list[Gone | None] = []
        told: list[ToldClient] = []
        lighter: list[Claim] = []
        for claim in claims:
            ticket, weight = self._places.get(claim.id, (None, 0))
            alive = db.execute(RENEW, (now + claim.ttl, claim.name, ticket, claim.id, now)).rowcount > 0
            if not alive and ticket is not None and self._has_moved(db, claim):
                ticket = self._ticket(claim)
                alive = db.execute(RENEW, (now + claim.ttl, claim.name, ticket, claim.id, now)).rowcount > 0
            fates.append(None if alive else Gone())
            if alive and ticket is not None and claim.weight < weight:
                inside, _ = walk(db, claim.name, now)
                db.execute(LIGHTEN, (claim.weight, claim.kind, claim.name, ticket, claim.weight))
                told += let_in(db, claim.name, inside, now)
                lighter.append(claim)
        if now - self._swept > SWEEP_EVERY:
            # What crashed on a name that nobody uses again would lie here for ever.
            self._swept = now
            db.execute(SWEEP, (now,))
        return fates, told, lighter

    def remove_client(self, client: str) -> list[ToldClient]:
        """Remove every claim of a client that is dead or done; whom to wake."""

        def work(db: sqlite3.Connection) -> list[ToldClient]:
            now = self.now()
            told: list[ToldClient] = []
            for (name,) in db.execute(OF_CLIENT, (client,)).fetchall():
                inside, _ = walk(db, name, now)
                db.execute("DELETE FROM claims WHERE name = ? AND client = ?", (name, client))
                told += let_in(db, name, inside, now)
            return told

        return self.step(work)

    def note(self, claim_id: str, ticket: int, weight: int) -> None:
        """Where a claim of this client's stands, as far as it knows."""
        self._places[claim_id] = Entered(ticket, weight)

    def _has_moved(self, db: sqlite3.Connection, claim: Claim) -> bool:
        """Whether it has a higher ticket than we knew, since somebody ahead of it handed over; noted, if so."""
        found = db.execute(MOVED, (claim.name, claim.id, self._ticket(claim) or 0)).fetchone()
        if found is not None:
            self.note(claim.id, *found)
        return found is not None

    def _ticket(self, claim: Claim) -> int | None:
        return self._places.get(claim.id, (None, 0))[0]

    def forget(self, claim_id: str) -> None:
        """A claim that is gone needs no ticket here any more."""
        self._places.pop(claim_id, None)


def walk(
    db: sqlite3.Connection, name: str, now: float, tally: Tally | None = None
) -> tuple[list[ClaimRow], ClaimRow | None]:
    """Those who hold, and the first who waits. What has run out is removed on the way."""
    inside: list[ClaimRow] = []
    expired: list[int] = []
    first_out = None
    tally = tally or Tally()
    for row in map(ClaimRow._make, db.execute(LINE, (name,))):
        if row.expires <= now:
            expired.append(row.ticket)
            continue
        if not tally.admits(row):
            first_out = row
            break
        inside.append(row)
    if expired and db.in_transaction:
        db.executemany(DELETE, [(name, ticket) for ticket in expired])
    return inside, first_out


def let_in(db: sqlite3.Connection, name: str, held_before: Iterable[ClaimRow], now: float) -> list[ToldClient]:
    """Mark those who hold now and did not before."""
    before = {row.ticket for row in held_before}
    fresh = [row for row in walk(db, name, now)[0] if row.ticket not in before]
    wall = time.time()
    for row in fresh:
        db.execute(GRANTED, (wall, name, row.ticket))
    return [ToldClient(row.reached_at, row.id) for row in fresh]


class CeilingReached(Exception):
    """The synced block of tickets is used up."""
