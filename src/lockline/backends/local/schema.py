"""The format of the embedded store: its tables, and how a file is made ready for a client."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Final

from ...errors import BackendUnavailable, ConfigError
from .target import boot_id

APPLICATION: Final = 0x4C4B4C4E  # "LKLN": tells our file from anybody else's
VERSION: Final = 1

CREATE: Final = (
    # The ticket is the place in the line and the fencing token. One tree, no index: an acquire writes two pages.
    """
    CREATE TABLE claims (
        name     TEXT NOT NULL,
        ticket   INTEGER NOT NULL,
        id       TEXT NOT NULL,
        client   TEXT NOT NULL,     -- the peer socket that its process listens on, with a ! before it if its death changes nothing
        pid      INTEGER NOT NULL,
        owner    TEXT NOT NULL,
        kind     TEXT NOT NULL,
        weight   INTEGER NOT NULL,
        capacity INTEGER NOT NULL,
        ttl      REAL NOT NULL,
        expires  REAL NOT NULL,     -- on the boot clock, good for this boot only
        arrived  REAL NOT NULL,     -- wall clock, for people
        granted  REAL,              -- wall clock, for people; NULL while it waits
        meta     TEXT NOT NULL,
        PRIMARY KEY (name, ticket)
    ) WITHOUT ROWID
    """,
    # One row. Tickets below the ceiling may be given out without a sync to disk, because the ceiling was synced
    # before: after a power cut, numbering goes on from there, however many transactions were lost.
    "CREATE TABLE counter (one INTEGER PRIMARY KEY CHECK (one = 1), last INTEGER NOT NULL, ceiling INTEGER NOT NULL, boot TEXT NOT NULL)",
)
COUNTER: Final = "SELECT last, ceiling, boot FROM counter"
BLOCK: Final = 1 << 20
"""How many tickets are reserved with one sync to disk."""
CHECKPOINT: Final = 4000
"""Pages in the log before it is folded into the file, which costs two syncs: about every thousand grants."""


def prepare(db: sqlite3.Connection, file: Path) -> None:
    """Make this connection ready for steps, and the file one of ours, of this boot."""
    # In one transaction: another process may be making the file at this moment.
    db.execute("BEGIN")
    ready = _version(db, file) == VERSION and db.execute(COUNTER).fetchone()[2] == boot_id()
    db.execute("COMMIT")
    if ready:
        _relax(db)
        return
    # A commit writes whole pages: small ones are cheaper. Counts for a file that is still empty only.
    db.execute("PRAGMA page_size = 1024")
    if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise BackendUnavailable(f"{file}: this file system cannot share memory between processes; use a local disk")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("BEGIN IMMEDIATE")
    try:
        boot = boot_id()
        if _version(db, file) == 0:
            for statement in CREATE:
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION}")
            db.execute(f"PRAGMA user_version = {VERSION}")
            # A new file begins at the wall clock, so that tokens rise even when the old file was thrown away.
            start = time.time_ns() // 1000
            db.execute("INSERT INTO counter VALUES (1, ?, ?, ?)", (start, start + BLOCK, boot))
        elif (theirs := db.execute(COUNTER).fetchone()[2]) != boot:
            if theirs.partition("+")[0] == boot.partition("+")[0] and db.execute("SELECT 1 FROM claims").fetchone():
                raise ConfigError(
                    f"{file} has claims of processes in another time namespace, whose clock is another; use one file in each, or a server"
                )
            # The machine started again: whoever stood in a line is gone, and the last tickets may never
            # have reached the disk. All of them were below the ceiling, which had.
            db.execute("DELETE FROM claims")
            db.execute("UPDATE counter SET last = ceiling, ceiling = ceiling + ?, boot = ?", (BLOCK, boot))
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    _to_disk(db)
    _relax(db)


def _relax(db: sqlite3.Connection) -> None:
    """From here on a commit costs no sync: the ceiling covers what a power cut takes."""
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")


def _version(db: sqlite3.Connection, file: Path) -> int:
    """The file's schema version, 0 for an empty file; an error for anything else."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    ours = db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
    if not ours and (version or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]):
        raise BackendUnavailable(
            f"{file} is a database of another program; choose another file for local:///path/file.db"
        )
    if version > VERSION:
        raise BackendUnavailable(
            f"{file} was made by a newer Lockline (format {version}, this one knows {VERSION}); "
            "upgrade lockline, or use another file"
        )
    return version


def _to_disk(db: sqlite3.Connection) -> None:
    """Best effort beside the synced log: others may be reading, then the log alone has it."""
    try:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    except sqlite3.OperationalError:
        pass


def raise_ceiling(db: sqlite3.Connection) -> None:
    """Reserve the next block of tickets; outside of a transaction, in which the sync setting cannot be changed."""
    db.execute("PRAGMA synchronous = FULL")
    try:
        db.execute("UPDATE counter SET ceiling = last + ? WHERE ceiling < last + ?", (BLOCK, BLOCK // 2))
    finally:
        db.execute("PRAGMA synchronous = NORMAL")
