"""What SQLite says, in words with a cure; and why a file must not be used any more."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from ...errors import BackendUnavailable


class Busy(Exception):
    """Another process is in its step right now; try again in a moment."""


FORKED: Final = (
    "was open when this process was forked, without the hooks that Python runs around os.fork() or in the "
    "middle of a call; what SQLite had open must not be used here: fork by Python, or connect after the fork only"
)
LOG_REMOVED: Final = (
    "lost its -wal or -shm file while this process used it, and other processes may hold the same locks in a new one; "
    "start this process again, and leave those files alone while it runs"
)
_CURES: Final = {
    ("SQLITE_FULL",): "the disk is full: free some space on it",
    ("SQLITE_READONLY",): "it is read-only: make it and {folder} writable for this user",
    (
        "SQLITE_CANTOPEN",
        "SQLITE_PERM",
        "SQLITE_AUTH",
    ): "it cannot be opened: check the permissions of it and of {folder}",
    ("SQLITE_CORRUPT", "SQLITE_NOTADB"): (
        "it is damaged or no Lockline file: stop the programs that use it and move it away; a new one is made"
    ),
    ("SQLITE_IOERR",): "the disk fails or is full: check it (dmesg) and the free space",
    ("SQLITE_PROTOCOL",): "another program keeps it locked: look for a frozen one (fuser shows who has it open)",
}


def storage_error(file: Path, problem: sqlite3.Error) -> Exception:
    """What SQLite said, with the file and the cure."""
    name = getattr(problem, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return Busy()
    cure = next((cure for names, cure in _CURES.items() if name.startswith(names)), "see the cause")
    return BackendUnavailable(f"{file}: {problem}; {cure.format(folder=file.parent)}")
