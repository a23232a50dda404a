"""Where the embedded store lives, who may read it, and what to do when the disk says no."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ...errors import BackendUnavailable, ConfigError
from ..url import redacted


def default_file() -> Path:
    """The file of `local:`: one per user, in the state directory."""
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state and os.path.isabs(state) else Path.home() / ".local" / "state"
    return base / "lockline" / "local.db"


def file_of(url: str) -> Path:
    """The file that a `local:` URL names."""
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise ConfigError(f"{redacted(url)!r}: local: takes no parameters")
    if not parts.netloc and not parts.path:
        return default_file()
    path = unquote(parts.path)
    if parts.netloc or not os.path.isabs(path) or path.endswith("/") or "\0" in path:
        raise ConfigError(
            f"{redacted(url)!r} names no file; write local:///absolute/path/file.db, or local: for the default"
        )
    return Path(path)


def make_folder(folder: Path) -> None:
    """Create the folder, and those above it that are missing, for this user alone."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def make_private(file: Path) -> None:
    """Create the folder (0700) and the file (0600) where they are missing."""
    try:
        make_folder(file.parent)
        # Only ever opened here while it is new: closing a handle on a database that this process has open
        # elsewhere would drop SQLite's own locks on it.
        if not file.exists():
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return
    except OSError as problem:
        raise BackendUnavailable(
            f"cannot create {file}: {problem.strerror}; make {file.parent} writable for this user, "
            "or choose another place with local:///path/file.db or XDG_STATE_HOME"
        ) from problem


def storage_error(file: Path, problem: sqlite3.Error) -> BackendUnavailable:
    """What SQLite said, with the file and the cure."""
    name = getattr(problem, "sqlite_errorname", "") or ""
    if name.startswith("SQLITE_FULL"):
        cure = "the disk is full: free some space on it"
    elif name.startswith("SQLITE_READONLY"):
        cure = f"it is read-only: make it and {file.parent} writable for this user"
    elif name.startswith(("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        cure = f"it cannot be opened: check the permissions of it and of {file.parent}"
    elif name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        cure = "it is damaged or no Lockline file: stop the programs that use it and move it away; a new one is made"
    elif name.startswith("SQLITE_IOERR"):
        cure = "the disk fails or is full: check it (dmesg) and the free space"
    elif name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
        cure = "another program keeps it locked: look for a frozen one (fuser shows who has it open)"
    else:
        cure = "see the cause"
    return BackendUnavailable(f"{file}: {problem}; {cure}")


def boot_id() -> str:
    """What is the same until the machine starts again, whatever the wall clock does."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        pass
    try:
        asked = subprocess.run(
            ["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, timeout=5, check=True
        )
        return asked.stdout.strip()
    except (OSError, subprocess.SubprocessError) as problem:
        raise BackendUnavailable("this system does not tell when it was started; local: needs that") from problem


def file_system(file: Path) -> str:
    """The type of the file system that the file is on, or an empty string."""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for mount in mounts:
        fields = mount.split()
        point = fields[1].encode().decode("unicode_escape")
        inside = os.path.commonpath([point, str(file)]) == point
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind
