"""The lines of one machine in one SQLite file. Every method is one atomic step."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ...core.claim import Claim, Gone, Grant, Line, Standing, Waiting
from ...core.rule import Tally, admitted
from ...errors import BackendUnavailable
from . import schema
from .connections import Busy, Connections
from .files import boot_id, make_private

T = TypeVar("T")

BLOCK = 1 << 20
"""How many tickets are reserved with one sync to disk."""
CHECKPOINT = 4000
"""Pages in the log before it is folded into the file, which costs two syncs: about every thousand grants."""
SWEEP_EVERY = 60.0


class Row(NamedTuple):
    """One claim as the rule and the wake-ups need it."""

    ticket: int
    id: str
    client: str
    pid: int
    weight: int
    capacity: int
    expires: float
    granted: float | None


class Told(NamedTuple):
    """Whom to wake after a step was committed."""

    client: str
    claim_id: str


class Store:
    """The steps of one client on the file, from any thread, also while another of the same thread is suspended."""

    def __init__(self, file: Path, now: Callable[[], float]) -> None:
        self.file = file
        self._now = now
        self._swept = 0.0
        self._places: dict[str, tuple[int, int]] = {}
        """Ticket and weight of each claim that was entered here, also of one whose step was then undone: so a claim is
        always told by its id as well."""
        self.connections = Connections(file, self._prepare, self._places.clear)
        self.step = self.connections.step
        self.read = self.connections.read

    # -- opening -----------------------------------------------------------------------------------

    def _prepare(self, db: sqlite3.Connection) -> None:
        # In one transaction: another process may be making the file at this moment.
        db.execute("BEGIN")
        ready = self._version(db) == schema.VERSION and db.execute(schema.COUNTER).fetchone()[2] == boot_id()
        db.execute("COMMIT")
        if ready:
            self._relax(db)
            return
        # A commit writes whole pages: small ones are cheaper. Counts for a file that is still empty only.
        db.execute("PRAGMA page_size = 1024")
        if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise BackendUnavailable(
                f"{self.file}: this file system cannot share memory between processes; use a local disk"
            )
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        try:
            boot = boot_id()
            if self._version(db) == 0:
                for statement in schema.CREATE:
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {schema.APPLICATION}")
                db.execute(f"PRAGMA user_version = {schema.VERSION}")
                # A new file begins at the wall clock, so that tokens rise even when the old file was thrown away.
                start = time.time_ns() // 1000
                db.execute(schema.NEW_COUNTER, (start, start + BLOCK, boot))
            elif db.execute(schema.COUNTER).fetchone()[2] != boot:
                # The machine started again: whoever stood in a line is gone, and the last tickets may never
                # have reached the disk. All of them were below the ceiling, which had.
                db.execute(schema.CLEAR)
                db.execute(schema.NEW_BOOT, (BLOCK, boot))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        self._to_disk(db)
        self._relax(db)

    def _relax(self, db: sqlite3.Connection) -> None:
        """From here on a commit costs no sync: the ceiling covers what a power cut takes."""
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")

    def _version(self, db: sqlite3.Connection) -> int:
        """The file's schema version, 0 for an empty file; an error for anything else."""
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        ours = db.execute("PRAGMA application_id").fetchone()[0] == schema.APPLICATION
        if not ours and (version or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]):
            raise BackendUnavailable(
                f"{self.file} is a database of another program; choose another file for local:///path/file.db"
            )
        if version > schema.VERSION:
            raise BackendUnavailable(
                f"{self.file} was made by a newer Lockline (format {version}, this one knows {schema.VERSION}); "
                "upgrade lockline, or use another file"
            )
        return version

    def _to_disk(self, db: sqlite3.Connection) -> None:
        """Best effort beside the synced log: others may be reading, then the log alone has it."""
        try:
            db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except sqlite3.OperationalError:
            pass

    def make(self) -> Path:
        """Make the file if it is missing, refuse it where it cannot work; its real path, whatever links led to it."""
        make_private(self.file)
        return Path(os.path.realpath(self.file))

    def close(self) -> None:
        """Let go of the file."""
        self.connections.close()

    def forked(self) -> None:
        """In a child: nothing of what the parent entered is ours."""
        self._places.clear()

    def stands(self) -> bool:
        """Whether something that was entered here may still be in the file."""
        return bool(self._places)

    # -- steps -------------------------------------------------------------------------------------

    def enter(self, claim: Claim, wait: bool, client: str, pid: int) -> tuple[Grant | Waiting | None, list[Row]]:
        """Stand at the end of the line; the answer, and who is in the way."""
        if claim.id in self._places:
            answer = self.standing(claim)[0]
            return (answer if not isinstance(answer, Gone) else Waiting(0)), []
        try:
            return self.step(lambda db: self._enter(db, claim, wait, client, pid))
        except _CeilingReached:
            self._raise_ceiling()
            return self.step(lambda db: self._enter(db, claim, wait, client, pid))

    def _enter(
        self, db: sqlite3.Connection, claim: Claim, wait: bool, client: str, pid: int
    ) -> tuple[Grant | Waiting | None, list[Row]]:
        now = self._now()
        tally = Tally()
        inside, first_out = self._walk(db, claim.name, now, tally)
        fits = first_out is None and tally.admits(claim)
        if not fits and not wait:
            return None, inside
        last, ceiling = db.execute(schema.LAST_TICKET).fetchone()
        if last >= ceiling:
            raise _CeilingReached
        ticket = last + 1
        db.execute(schema.NEXT_TICKET, (ticket,))
        wall = time.time()
        db.execute(
            schema.INSERT,
            (
                claim.name, ticket, claim.id, client, pid, claim.owner, claim.kind, claim.weight, claim.capacity,
                claim.ttl, now + claim.ttl, claim.since, wall if fits else None, claim.meta,
            ),
        )  # fmt: skip
        # Before the commit: wherever we are cut short, what may stand in the file can be found again.
        self._places[claim.id] = (ticket, claim.weight)
        if fits:
            return Grant(ticket), []
        ahead = db.execute(schema.AHEAD, (claim.name, ticket, now)).fetchone()[0]
        return Waiting(ahead), inside

    def _walk(
        self, db: sqlite3.Connection, name: str, now: float, tally: Tally | None = None
    ) -> tuple[list[Row], Row | None]:
        """Those who hold, and the first who waits. What has run out is removed on the way."""
        inside: list[Row] = []
        expired: list[int] = []
        first_out = None
        tally = tally or Tally()
        for row in map(Row._make, db.execute(schema.LINE, (name,))):
            if row.expires <= now:
                expired.append(row.ticket)
                continue
            if not tally.admits(row):
                first_out = row
                break
            inside.append(row)
        if expired and db.in_transaction:
            db.executemany(schema.DELETE, [(name, ticket) for ticket in expired])
        return inside, first_out

    def _raise_ceiling(self) -> None:
        def work(db: sqlite3.Connection) -> None:
            db.execute("PRAGMA synchronous = FULL")
            try:
                db.execute(schema.RAISE_CEILING, (BLOCK, BLOCK // 2))
            finally:
                db.execute("PRAGMA synchronous = NORMAL")

        # One statement, and a transaction by itself: the sync setting cannot be changed inside one.
        self.read(work)

    def standing(self, claim: Claim) -> tuple[Grant | Waiting | Gone, list[Row]]:
        """Where the claim stands, and who is in its way: the holders if it is next, else the one before it."""
        answer, in_the_way, unmarked = self.read(lambda db: self._standing(db, claim, self._now()))
        if unmarked:
            try:
                self.step(lambda db: db.execute(schema.GRANTED, (time.time(), claim.name, unmarked)))
            except Busy:
                pass  # since when it holds is for people; the grant stands without it
        return answer, in_the_way

    def _standing(
        self, db: sqlite3.Connection, claim: Claim, now: float
    ) -> tuple[Grant | Waiting | Gone, list[Row], int]:
        ticket = self._ticket(claim)
        mine = None if ticket is None else db.execute(schema.MINE, (claim.name, ticket, claim.id)).fetchone()
        if ticket is None or mine is None or mine[0] <= now:
            return Gone(), [], 0
        inside, first_out = self._walk(db, claim.name, now)
        for row in inside:
            if row.ticket == ticket:
                return Grant(ticket), [], 0 if row.granted else ticket
        if first_out is not None and first_out.ticket == ticket:
            return Waiting(len(inside)), inside, 0
        before = db.execute(schema.BEFORE, (claim.name, ticket, now)).fetchall()
        return Waiting(len(inside) + 1), [Row._make(row) for row in before], 0

    def leave(self, claim: Claim) -> tuple[bool, list[Told]]:
        """Remove this claim; whether it was there, and whom to wake."""
        if claim.id not in self._places:
            return False, []
        return self.step(lambda db: self._leave(db, claim))

    def leave_all(self, claims: Sequence[Claim]) -> tuple[list[bool], list[Told]]:
        """Remove these claims in one transaction; whether each was there, and whom to wake."""

        def work(db: sqlite3.Connection) -> tuple[list[bool], list[Told]]:
            left = [self._leave(db, claim) for claim in claims]
            # Who was let in by one of them may itself have been among the next.
            gone = {claim.id for claim in claims}
            return [there for there, _ in left], [one for _, told in left for one in told if one.claim_id not in gone]

        return self.step(work)

    def _leave(self, db: sqlite3.Connection, claim: Claim) -> tuple[bool, list[Told]]:
        now = self._now()
        ticket = self._ticket(claim)
        if ticket is None:
            return False, []
        inside, first_out = self._walk(db, claim.name, now)
        behind = first_out is not None and ticket > first_out.ticket
        # The walk ends at the first who waits: whether one behind it has run out is to be asked for.
        mine = db.execute(schema.MINE, (claim.name, ticket, claim.id)).fetchone() if behind else None
        removed = db.execute(schema.DELETE_MINE, (claim.name, ticket, claim.id)).rowcount > 0
        there = removed and (mine is None or mine[0] > now)
        # Nobody waits, or the leaver was not the one in the way of the first: nothing changes for the others.
        if first_out is None:
            return there, []
        return there, self._let_in(db, claim.name, inside, now)

    def _let_in(self, db: sqlite3.Connection, name: str, held_before: Iterable[Row], now: float) -> list[Told]:
        """Mark those who hold now and did not before."""
        before = {row.ticket for row in held_before}
        fresh = [row for row in self._walk(db, name, now)[0] if row.ticket not in before]
        wall = time.time()
        for row in fresh:
            db.execute(schema.GRANTED, (wall, name, row.ticket))
        return [Told(row.client, row.id) for row in fresh]

    def renew(self, claims: Sequence[Claim]) -> tuple[list[Gone | None], list[Told]]:
        """Give each its ttl again; what became of each, and whom to wake."""
        fates, told, lighter = self.step(lambda db: self._renew(db, claims))
        for claim in lighter:
            place = self._places.get(claim.id)
            if place is not None:
                self._places[claim.id] = (place[0], claim.weight)
        return fates, told

    def _renew(
        self, db: sqlite3.Connection, claims: Sequence[Claim]
    ) -> tuple[list[Gone | None], list[Told], list[Claim]]:
        now = self._now()
        fates: list[Gone | None] = []
        told: list[Told] = []
        lighter: list[Claim] = []
        for claim in claims:
            ticket, weight = self._places.get(claim.id, (None, 0))
            alive = db.execute(schema.RENEW, (now + claim.ttl, claim.name, ticket, claim.id, now)).rowcount > 0
            fates.append(None if alive else Gone())
            if alive and ticket is not None and claim.weight < weight:
                inside, _ = self._walk(db, claim.name, now)
                db.execute(schema.LIGHTEN, (claim.weight, claim.kind, claim.name, ticket, claim.weight))
                told += self._let_in(db, claim.name, inside, now)
                lighter.append(claim)
        if now - self._swept > SWEEP_EVERY:
            # What crashed on a name that nobody uses again would lie here for ever.
            self._swept = now
            db.execute(schema.SWEEP, (now,))
        return fates, told, lighter

    def bury(self, client: str) -> list[Told]:
        """Remove every claim of a client that is dead or done; whom to wake."""

        def work(db: sqlite3.Connection) -> list[Told]:
            now = self._now()
            told: list[Told] = []
            for (name,) in db.execute(schema.OF_CLIENT, (client,)).fetchall():
                inside, _ = self._walk(db, name, now)
                db.execute("DELETE FROM claims WHERE name = ? AND client = ?", (name, client))
                told += self._let_in(db, name, inside, now)
            return told

        return self.step(work)

    def evict(self, name: str, token: int | None) -> tuple[list[Told], list[Told]]:
        """Remove the holders, or the one with that token; the victims, and whom to wake."""

        def work(db: sqlite3.Connection) -> tuple[list[Told], list[Told]]:
            now = self._now()
            inside, _ = self._walk(db, name, now)
            victims = [row for row in inside if token is None or row.ticket == token]
            db.executemany(schema.DELETE, [(name, row.ticket) for row in victims])
            return [Told(row.client, row.id) for row in victims], self._let_in(db, name, inside, now)

        return self.step(work)

    def look(self, name: str) -> Line:
        """The whole line."""
        now = self._now()
        rows = self.read(lambda db: db.execute(schema.WHOLE_LINE, (name, now)).fetchall())
        return Line(name, tuple(_seen(rows, now)))

    def names(self, prefix: str) -> list[str]:
        """The names that have a live claim."""
        rows = self.read(lambda db: db.execute(schema.NAMES, (self._now(),)).fetchall())
        return [name for (name,) in rows if name.startswith(prefix)]

    def _ticket(self, claim: Claim) -> int | None:
        return self._places.get(claim.id, (None, 0))[0]

    def forget(self, claim_id: str) -> None:
        """A claim that is gone needs no ticket here any more."""
        self._places.pop(claim_id, None)


class _CeilingReached(Exception):
    """The synced block of tickets is used up."""


class _Weighed(NamedTuple):
    weight: int
    capacity: int


def _seen(rows: list[Any], now: float) -> Iterator[Standing]:
    holders = admitted([_Weighed(row[4], row[5]) for row in rows])
    for at, row in enumerate(rows):
        ticket, claim_id, owner, kind, weight, capacity, ttl, expires, arrived, granted, meta = row
        yield Standing(
            id=claim_id, owner=owner, kind=kind, token=ticket, holds=at < holders, weight=weight,
            capacity=capacity, ttl=ttl, remaining=expires - now, since=granted or arrived,
            meta=json.loads(meta) if meta else None,
        )  # fmt: skip
