"""Where the embedded store lives, and who may use it beside its owner: nobody, unless the file is one that a group shares.

The file says it: readable and writable for its group, and all that lies beside it is too. A new file becomes such a one
in a folder that hands its group on (`chmod g+ws`). In a folder where others may write, anything may have been planted
under the name of our own folder: it is used only if it is a folder, no link, and belongs to one who may use the file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

from ...errors import BackendUnavailable, ConfigError, LocklineError
from ..url import Endpoint, Grammar, Location, redacted

GRAMMAR: Final = Grammar("local:///absolute/path/file.db, or local: for the default")
NETWORK: Final = (
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "fuse.ceph", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs",
    "gfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "ocfs2", "orangefs", "pvfs2", "smb", "vboxsf", "virtiofs", "vmhgfs",
)  # fmt: skip
"""What file systems that more than one machine may have mounted are called, from the beginning of the name."""
MOUNTS = Path("/proc/self/mounts")
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


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


def boot_id() -> str:
    """What is the same until the machine starts again, whatever the wall clock does; in a time namespace, with its offset behind a +."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + _offset_of_namespace()
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


def _offset_of_namespace() -> str:
    try:
        lines = Path("/proc/self/timens_offsets").read_text().splitlines()
    except OSError:  # a kernel without time namespaces
        return ""
    offsets = {words[0]: tuple(map(int, words[1:])) for words in map(str.split, lines)}
    seconds, nanoseconds = offsets.get("boottime", (0, 0))
    return f"+{seconds}.{nanoseconds:09}" if seconds or nanoseconds else ""


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


class Sharing(NamedTuple):
    """Whose file it is, and whether its group uses it too."""

    owner: int
    group: int
    by_group: bool

    @property
    def socket_mode(self) -> int:
        return 0o660 if self.by_group else 0o600

    @property
    def folder_mode(self) -> int:
        return 0o2770 if self.by_group else 0o700


def sharing_of(file: Path) -> Sharing:
    """How the file is shared."""
    there = os.stat(file)
    return Sharing(there.st_uid, there.st_gid, there.st_mode & 0o060 == 0o060)


def mode_of_a_new_file(folder: Path) -> int:
    """For its owner alone, or for the group that the folder hands on to what is made in it."""
    mode = os.stat(folder).st_mode
    group_shares = mode & stat.S_ISGID and mode & 0o020 and not mode & 0o002
    return 0o660 if group_shares else 0o600


def enter_folder(folder: Path, sharing: Sharing) -> int:
    """A handle on the folder of sockets, which is made if it is missing and refused if it may not be what it seems."""
    try:
        os.mkdir(folder, 0o700)
        made = True
    except FileExistsError:
        made = False
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as problem:
        if problem.errno in (errno.ELOOP, errno.ENOTDIR):
            raise _refusal(folder, "is a link or no folder") from problem
        raise
    try:
        if made:
            give_to_sharers(".", handle, sharing)
            os.fchmod(handle, sharing.folder_mode)
        there = os.fstat(handle)
        shared = sharing.by_group and there.st_gid == sharing.group
        if not shared and there.st_uid not in (os.geteuid(), sharing.owner, 0):
            raise _refusal(folder, f"belongs to another user (uid {there.st_uid})")
        if there.st_mode & (0o002 if shared else 0o022):
            raise _refusal(folder, "can be written by others")
    except BaseException:
        os.close(handle)
        raise
    return handle


def give_to_sharers(name: str, folder: int, sharing: Sharing) -> None:
    """What the superuser makes belongs to the owner of the file, and what a member makes to its group."""
    owner = sharing.owner if os.geteuid() == 0 else -1
    group = sharing.group if os.geteuid() == 0 or sharing.by_group else -1
    if owner != -1 or group != -1:
        os.chown(name, owner, group, dir_fd=folder, follow_symlinks=False)


def _refusal(folder: Path, why: str) -> BackendUnavailable:
    refused = BackendUnavailable(
        f"{folder} {why}, and would be used for waking the holders and waiters of this store; look who put it there, remove it, "
        "or use a file in a folder where nobody else can write"
    )
    refused.permanent = True
    return refused
