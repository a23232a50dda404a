"""Marks in a file: read and raised under a lock of the operating system, whole after a crash at any instruction."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...errors import BackendUnavailable, ConfigError
from ..rule import LARGEST, Mark, Offer, passed

VERSION: Final = 1
PAUSES: Final = (0.001, 0.05)
"""Seconds between two tries at the lock, the first ones and at the most."""


class Appending(NamedTuple):
    """An append that was under way when this was written: what had been there, and what was to come."""

    start: int
    length: int
    check: int


class Marks(NamedTuple):
    """All that is remembered beside one resource."""

    by_lock: dict[str, Mark]
    appending: Appending | None = None


@dataclass(frozen=True, slots=True)
class Entrant:
    """One who is inside; called, it leaves."""

    file: FileIO
    """What the operating system has locked."""
    marks: Marks

    @property
    def handle(self) -> int:
        """Whoever has a copy of this keeps the others out as well."""
        return self.file.fileno()

    def __call__(self) -> None:
        unlock(self.file)


class MarkFile:
    """The marks of one resource, in `.<name>.fence`; `.<name>.fence.lock` is what the operating system locks.

    Two files, because the marks are replaced by a rename, and a lock would stay on the file that was replaced.
    """

    __slots__ = ("_known", "_lock", "_marks", "folder", "resource")

    def __init__(self, folder: str, name: str, resource: str) -> None:
        self.folder = folder
        self.resource = resource
        self._marks = os.path.join(folder, f".{name}.fence")
        self._lock = f"{self._marks}.lock"
        self._known: tuple[bytes, Marks] = (b"", Marks({}))

    def admit(
        self,
        offer: Offer,
        *,
        writes: bool,
        exact: bool,
        patience: float,
        mend: Callable[[Appending], None] | None = None,
    ) -> Entrant:
        """Raise the mark and keep everybody else out until the entrant leaves; StaleToken if it may not pass.

        BackendUnavailable if another stayed inside for that long. An append that did not reach its end is mended first.
        """
        file = self.lock(time.monotonic() + patience)
        if file is None:
            raise BackendUnavailable(
                f"another process stayed inside the fence of {self.resource!r} for {patience:g} s; "
                "if it is stopped, let it go on or kill it"
            )
        try:
            marks = self.read()
            before = marks.by_lock.get(offer.lock)
            mark = passed(self.resource, before, offer, writes=writes, exact=exact)
            if marks.appending is not None and mend is not None:
                mend(marks.appending)
            if mark != before or marks.appending is not None:
                # The mark lasts before the write it allows begins: after a crash no data is newer than the mark.
                marks = Marks({**marks.by_lock, offer.lock: mark})
                self.write(marks)
            return Entrant(file, marks)
        except BaseException:
            unlock(file)
            raise

    def lock(self, until: float | None) -> FileIO | None:
        """Keep everybody else out until `unlock`; None if that took longer (until None: if it must wait).

        The operating system drops the lock with the process, so a killed holder leaves nothing behind. And with the file that this
        gives: an exception may strike before anybody has noted it, and a bare number would stay open, and the fence shut.
        """
        pause, longest = PAUSES
        file = self._open()
        while True:
            if self._try_lock(file):
                if self._is_there(file):
                    return file
                # Whoever tidied up took the file away after it was opened. The next one makes a new file, and a
                # lock on the old one keeps nobody out.
                file.close()
                file = self._open()
                continue
            if until is None or time.monotonic() >= until:
                file.close()
                return None
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _open(self) -> FileIO:
        try:
            return FileIO(self._lock, "r+", opener=_make_or_open)
        except OSError as problem:
            raise ConfigError(
                f"the fence of {self.resource!r} cannot be kept in {self.folder!r}: {problem.strerror}"
            ) from None

    def _try_lock(self, file: FileIO) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as problem:
            raise ConfigError(
                f"the file system of {self.folder!r} has no locks ({problem.strerror}), so it cannot keep a fence"
            ) from None
        return True

    def _is_there(self, file: FileIO) -> bool:
        mine = os.fstat(file.fileno())
        try:
            there = os.stat(self._lock)
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def read(self) -> Marks:
        """The marks; ConfigError if the file is not one that Lockline wrote."""
        try:
            fd = open_file(self._marks, os.O_RDONLY)
        except FileNotFoundError:
            return Marks({})
        except OSError as problem:
            raise ConfigError(f"the marks in {self._marks!r} cannot be read: {problem.strerror}") from None
        try:
            text = _read_all(fd)
        finally:
            os.close(fd)
        known, marks = self._known
        if text == known and text:
            return marks
        try:
            marks = marks_from(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigError(
                f"{self._marks!r} is not a file of marks that this version of Lockline wrote; nothing was changed"
            ) from None
        self._known = (text, marks)
        return marks

    def forget(self, before: float) -> bool:
        """Take the marks away if they were last raised before that time (of the wall clock) and nobody is inside."""
        if not self._is_older(before):
            return False
        file = self.lock(None)
        if file is None:
            return False
        try:
            if not self._is_older(before):  # somebody came in between
                return False
            os.unlink(self._marks)
            # The lock last, and while it is held: one who waits for it looks whether it is still there.
            os.unlink(self._lock)
            return True
        finally:
            unlock(file)

    def _is_older(self, before: float) -> bool:
        try:
            return os.stat(self._marks).st_mtime < before
        except FileNotFoundError:
            return False

    def write(self, marks: Marks) -> None:
        """Replace the marks: after a crash either the old or the new ones are there, and once this returns the new."""
        text = marks_text(self.resource, marks.by_lock, marks.appending)
        replace_file(self._marks, f"{self._marks}.new", text, mode=None)


def marks_text(resource: str, by_lock: dict[str, Mark], appending: Appending | None = None) -> bytes:
    """The marks of one resource, as they are kept in a file or an object."""
    value: dict[str, Any] = {
        "lockline-fence": VERSION,
        "resource": resource,
        "marks": {name: list(mark) for name, mark in by_lock.items()},
    }
    if appending is not None:
        value["appending"] = list(appending)
    return json.dumps(value).encode()


def marks_from(value: Any) -> Marks:
    """The marks in what `marks_text` wrote; some error of Python's own if it is anything else."""
    if value["lockline-fence"] != VERSION:
        raise ValueError("another version")
    marks = {}
    for name, (token, grant) in value["marks"].items():
        if type(token) is not int or not 0 <= token <= LARGEST or not isinstance(grant, str):
            raise ValueError("not a mark")
        marks[name] = Mark(token, grant)
    appending = value.get("appending")
    if appending is None:
        return Marks(marks)
    start, length, check = map(int, appending)
    return Marks(marks, Appending(start, length, check))


def unlock(file: FileIO) -> None:
    """Let others in again."""
    with file:
        # Closing alone would not do: a child that was forked meanwhile holds the same lock by its copy of the descriptor.
        fcntl.flock(file, fcntl.LOCK_UN)


def _make_or_open(path: str, flags: int) -> int:
    return open_file(path, flags | os.O_CREAT)


def open_file(path: str, flags: int) -> int:
    """The number of a regular file; of a FIFO that somebody put there, a read would never end."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


def replace_file(path: str, draft: str, data: bytes, *, mode: int | None) -> None:
    """Put these bytes in the place of the file, at one instant, and make it last.

    The draft has a fixed name: it is written only under the fence's lock. One that a crash left is taken away, and so is a link
    that a stranger put there: written through it, another file would be lost.
    """
    with suppress(FileNotFoundError):
        os.unlink(draft)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        if mode is not None:
            os.fchmod(fd, mode)
        write_all(fd, data)
        # Before the rename: some file systems order a rename before the data of the file it names.
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(draft, path)
    sync_folder(os.path.dirname(path))


def _read_all(fd: int) -> bytes:
    parts = []
    while part := os.read(fd, 65536):
        parts.append(part)
        if len(part) < 65536:
            break
    return b"".join(parts)


def write_all(fd: int, data: bytes) -> None:
    """Write all of it, however little the system takes at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(folder: str) -> None:
    """Make a rename or a new name in this folder last."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def place_of(path: str | os.PathLike[str]) -> tuple[str, str]:
    """The folder and name behind a path, so that all ways to one file lead to the same marks."""
    text = os.fspath(path)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f"a file is named by a path that is not empty, not {path!r}")
    real = Path(os.path.realpath(text))
    if real.is_dir() or not real.name:
        raise ConfigError(f"{text!r} is a folder; a fence protects a file")
    if not real.parent.is_dir():
        raise ConfigError(f"the folder of {text!r} does not exist")
    return str(real.parent), real.name
