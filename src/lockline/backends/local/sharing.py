"""Who may use the store beside its owner: nobody, unless the file is one that a group shares.

The file says it: readable and writable for its group, and all that lies beside it is too. A new file becomes such a one
in a folder that hands its group on (`chmod g+ws`). In a folder where others may write, anything may have been planted
under the name of our own folder: it is used only if it is a folder, no link, and belongs to one who may use the file.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

from ...errors import BackendUnavailable


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
