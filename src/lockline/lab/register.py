"""The resource that the locks are there for: one number in a database file, read, increased and written back.

An update that is lost is a fact here: two writes that were accepted and both rest on the same reading.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..fence import SqlFence

SCHEMA = """
    CREATE TABLE register (value INTEGER NOT NULL);
    INSERT INTO register VALUES (0);
    CREATE TABLE history (client TEXT, based_on INTEGER, wrote INTEGER);
"""


@dataclass(frozen=True, slots=True)
class Write:
    """One write that was accepted."""

    client: str
    based_on: int
    wrote: int


class Register:
    """A number and its history; with a fence only the newest holder comes in."""

    def __init__(self, file: Path, *, fenced: bool) -> None:
        self.file = file
        self._fence = SqlFence() if fenced else None

    def create(self) -> None:
        """Zero, and no history."""
        with self._open() as db:
            db.executescript(SCHEMA)
            if self._fence is not None:
                self._fence.create(db)

    def read(self, lease: Any) -> int:
        """The number; the fence is entered before it is read."""
        with self._open() as db:
            self._enter(db, lease)
            (value,) = db.execute("SELECT value FROM register").fetchone()
            return int(value)

    def write(self, client: str, seen: int, lease: Any) -> int:
        """One more than what was seen."""
        with self._open() as db:
            self._enter(db, lease)
            db.execute("UPDATE register SET value = ?", (seen + 1,))
            db.execute("INSERT INTO history VALUES (?, ?, ?)", (client, seen, seen + 1))
            return seen + 1

    def history(self) -> list[Write]:
        """What was accepted, in order."""
        with self._open() as db:
            return [Write(*row) for row in db.execute("SELECT client, based_on, wrote FROM history ORDER BY rowid")]

    def _enter(self, db: sqlite3.Connection, lease: Any) -> None:
        if self._fence is not None:
            self._fence.enter(db, "register", lease)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self.file, timeout=10)) as db, db:
            yield db
