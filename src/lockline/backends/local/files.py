"""Where the embedded store lives, who may read it, and what to do when the disk says no."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
from pathlib import Path

from ...errors import BackendUnavailable, ConfigError, LocklineError
from ..url import Endpoint, Grammar, Location, redacted
from .sharing import mode_of_a_new_file

GRAMMAR = Grammar("local:///absolute/path/file.db, or local: for the default")


def default_file() -> Path:
    """The file of `local:`: one per user, in the state directory."""
    state = os.environ.get("XDG_STATE_HOME")
    if state and os.path.isabs(state):
        return Path(state) / "lockline" / "local.db"
    try:
        home = Path.home()
    except RuntimeError as problem:
        raise ConfigError(
            "local: lies in the user's home, and this user has none; set HOME or XDG_STATE_HOME, "
            "or name a file: local:///path/file.db"
        ) from problem
    if not home.is_absolute():
        # Each folder that a program is started in would have a store of its own.
        raise ConfigError(
            f"local: lies in the user's home, and HOME is {str(home)!r}, which is no absolute path; set it, or name a file"
        )
    return home / ".local" / "state" / "lockline" / "local.db"


def file_of(url: str) -> Path:
    """The file that a `local:` URL names."""
    path = GRAMMAR.read(url).path
    if not path:
        return default_file()
    if path.endswith("/") or "\0" in path:
        raise ConfigError(f"{redacted(url)!r} names no file; write {GRAMMAR.example}")
    return Path(path)


def url_of(file: Path) -> str:
    """The URL that names this file wherever it is opened."""
    return Location("local", (Endpoint("", 0),), str(file)).url


def make_folder(folder: Path) -> None:
    """Create the folder, and those above it that are missing, for this user alone."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def make_private(file: Path) -> None:
    """Create the folder (0700) and the file (0600, or for the group of a folder that is shared) where they are missing."""
    try:
        make_folder(file.parent)
        # Only ever opened here while it is new: closing a handle on a database that this process has open
        # elsewhere would drop SQLite's own locks on it.
        if file.exists():
            return
        refuse_network_files(file)
        mode = mode_of_a_new_file(file.parent)
        handle = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.fchmod(handle, mode)
        finally:
            os.close(handle)
    except FileExistsError:
        return
    except LocklineError:
        raise
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
    except FileNotFoundError:
        pass
    except OSError as problem:
        raise BackendUnavailable(f"cannot ask when this system was started: {problem.strerror}") from problem
    try:
        asked = subprocess.run(
            ["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, timeout=5, check=True
        )
        return asked.stdout.strip()
    except (OSError, subprocess.SubprocessError) as problem:
        raise BackendUnavailable("this system does not tell when it was started; local: needs that") from problem


NETWORK = (
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    "gfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "ocfs2", "orangefs", "pvfs2", "smb", "vboxsf", "virtiofs", "vmhgfs",
)  # fmt: skip
"""What file systems that more than one machine may have mounted are called, from the beginning of the name."""
MOUNTS = Path("/proc/self/mounts")
_OCTAL = re.compile(rb"\\([0-7]{3})")


def refuse_network_files(file: Path) -> None:
    """ConfigError on a file system that another machine may have mounted too.

    SQLite's shared memory does not reach that far, and the other machine's boot id would void this one's claims.
    """
    kind = file_system(file)
    if kind.startswith(NETWORK):
        raise ConfigError(
            f"{file} is on a network file system ({kind}), and local: is for the processes of one machine; "
            "name a file on a local disk, or use a store with a server"
        )


def file_system(file: Path) -> str:
    """The type of the file system that the file is on, or an empty string where the system does not tell."""
    try:
        mounts = MOUNTS.read_bytes().splitlines()
    except FileNotFoundError:
        return ""
    path = os.fsencode(os.path.realpath(file))
    best, kind = b"", ""
    for mount in mounts:
        # Blanks and backslashes stand there as octal numbers; all else as it is.
        fields = [_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), field) for field in mount.split()]
        if len(fields) < 3:
            continue
        point = fields[1].rstrip(b"/")
        if (path == point or path.startswith(point + b"/")) and len(point) >= len(best):
            best, kind = point, os.fsdecode(fields[2])
    return kind
