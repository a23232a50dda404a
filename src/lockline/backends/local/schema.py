"""The SQL of the embedded store, each statement with its reason."""

from __future__ import annotations

from typing import Final

APPLICATION: Final = 0x4C4B4C4E  # "LKLN": tells our file from anybody else's
VERSION: Final = 1

CREATE: Final = (
    # The ticket is the place in the line and the fencing token. One tree, no index: an acquire writes two pages.
    """
    CREATE TABLE claims (
        name     TEXT NOT NULL,
        ticket   INTEGER NOT NULL,
        id       TEXT NOT NULL,
        client   TEXT NOT NULL,     -- the peer socket that its process listens on
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

COLUMNS: Final = "ticket, id, client, pid, weight, capacity, expires, granted"

NEW_COUNTER: Final = "INSERT INTO counter VALUES (1, ?, ?, ?)"
COUNTER: Final = "SELECT last, ceiling, boot FROM counter"
NEW_BOOT: Final = "UPDATE counter SET last = ceiling, ceiling = ceiling + ?, boot = ?"
RAISE_CEILING: Final = "UPDATE counter SET ceiling = last + ? WHERE ceiling < last + ?"
# Two statements: RETURNING alone would cost more than the rest of an acquire.
LAST_TICKET: Final = "SELECT last, ceiling FROM counter"
NEXT_TICKET: Final = "UPDATE counter SET last = ?"

LINE: Final = f"SELECT {COLUMNS} FROM claims WHERE name = ? ORDER BY ticket"
WHOLE_LINE: Final = (
    "SELECT ticket, id, owner, kind, weight, capacity, ttl, expires, arrived, granted, meta "
    "FROM claims WHERE name = ? AND expires > ? ORDER BY ticket"
)
AHEAD: Final = "SELECT count(*) FROM claims WHERE name = ? AND ticket < ? AND expires > ?"
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
OF_CLIENT: Final = "SELECT DISTINCT name FROM claims WHERE client = ?"
NAMES: Final = "SELECT DISTINCT name FROM claims WHERE expires > ? ORDER BY name"
SWEEP: Final = "DELETE FROM claims WHERE expires <= ?"
CLEAR: Final = "DELETE FROM claims"
