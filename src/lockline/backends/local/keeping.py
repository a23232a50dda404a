"""What is kept beside a line, written under the token: a table of its own, made by the first who needs it."""

from __future__ import annotations

import sqlite3
import time
from typing import Final

from ...core.claim import Claim, Record
from .commands import SqliteSteps

# By the wall clock, unlike claims: what was done is still done after the machine has started again.
TABLE: Final = """
    CREATE TABLE IF NOT EXISTS kept (
        name    TEXT NOT NULL,
        what    TEXT NOT NULL,
        mark    INTEGER NOT NULL,   -- the highest token that was here
        until   REAL NOT NULL,      -- how long that is remembered
        value   BLOB,
        token   INTEGER NOT NULL,
        written REAL NOT NULL,
        expires REAL NOT NULL,
        PRIMARY KEY (name, what)
    ) WITHOUT ROWID
"""
# For the sweep, which is a part of every write: it finds what is over without a look at all the rest.
INDEX: Final = "CREATE INDEX IF NOT EXISTS kept_until ON kept (until)"
READ: Final = "SELECT mark, until, value, token, written, expires FROM kept WHERE name = ? AND what = ?"
MARK: Final = (
    "INSERT INTO kept VALUES (?, ?, ?, ?, NULL, 0, 0, 0) "
    "ON CONFLICT DO UPDATE SET mark = excluded.mark, until = max(until, excluded.until)"
)
WRITE: Final = (
    "INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET mark = excluded.mark, "
    "until = max(until, excluded.until), value = excluded.value, token = excluded.token, written = excluded.written, "
    "expires = excluded.expires"
)
SWEEP: Final = "DELETE FROM kept WHERE until <= ?"
LET_LAST: Final = (
    "UPDATE claims SET client = '', pid = 0, expires = max(expires, ?) WHERE name = ? AND id = ? AND expires > ?"
)


def look(steps: SqliteSteps, name: str, what: str) -> Record:
    """What is kept there."""

    def work(db: sqlite3.Connection) -> Record:
        try:
            return _read(db, name, what, time.time())[1]
        except sqlite3.OperationalError as problem:
            if "no such table" not in str(problem):
                raise
            return Record(time.time())

    return steps.read(work)


def arrive(steps: SqliteSteps, name: str, what: str, token: int, ttl: float) -> Record:
    """The same, and from now on nobody with a lower token writes."""

    def work(db: sqlite3.Connection) -> Record:
        now = time.time()
        _make(db)
        mark, kept = _read(db, name, what, now)
        if token > mark:
            db.execute(MARK, (name, what, token, now + ttl))
        return kept

    return steps.step(work)


def keep(steps: SqliteSteps, name: str, what: str, value: bytes, token: int, ttl: float) -> bool:
    """Keep it, if no higher token was there."""

    def work(db: sqlite3.Connection) -> bool:
        now = time.time()
        _make(db)
        if _read(db, name, what, now)[0] > token:
            return False
        db.execute(WRITE, (name, what, token, now + ttl, value, token, now, now + ttl))
        db.execute(SWEEP, (now,))
        return True

    return steps.step(work)


def let_last(steps: SqliteSteps, claim: Claim, ttl: float) -> bool:
    """Let a claim end by its own time and by nothing else: as nobody's, nobody's death removes it."""
    now = steps.now()
    return steps.step(lambda db: db.execute(LET_LAST, (now + ttl, claim.name, claim.id, now)).rowcount > 0)


def _make(db: sqlite3.Connection) -> None:
    """Make the table, unless it is there."""
    db.execute(TABLE)
    db.execute(INDEX)


def _read(db: sqlite3.Connection, name: str, what: str, now: float) -> tuple[int, Record]:
    """The mark, and what is kept."""
    row = db.execute(READ, (name, what)).fetchone()
    if row is None or row[1] <= now:
        return 0, Record(now)
    mark, _, value, token, written, expires = row
    return mark, Record(now, value, token, written, expires) if expires > now else Record(now)
