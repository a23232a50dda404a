"""A file behind a fence: replaced or appended to as a whole, by the newest holder only."""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ...core.arguments import a_flag, a_ttl
from ..rule import Mark, a_body, offer_of
from ..threads import awaited
from .markfile import Appending, MarkFile, Marks, open_file, place_of, replace_file, sync_folder, write_all

Path = str | os.PathLike[str]


class FileFence:
    """Writes to files on one machine, checked: the mark lies beside each file, in `.<name>.fence`.

    Other programs may read the file at any time: a replaced file is the old one or the new one, never a part.
    What must not be is another program that writes it without the fence.
    """

    def __init__(self, *, exact: bool = False, patience: float = 30.0) -> None:
        self.exact = a_flag(exact, "exact")
        self.patience = a_ttl(patience, "patience")

    def enter(self, path: Path, holder: Any, *, lock: str | None = None) -> None:
        """Raise the mark, before the first read: from here on no older holder writes this file."""
        with self._inside(path, holder, lock, writes=False):
            pass

    def read(self, path: Path, holder: Any, *, lock: str | None = None) -> bytes:
        """Enter, then all of the file; FileNotFoundError if there is none."""
        with (
            self._inside(path, holder, lock, writes=False) as (file, _, _),
            open(file, "rb", opener=open_file) as there,
        ):
            return there.read()

    def replace(self, path: Path, holder: Any, data: bytes | str, *, lock: str | None = None) -> None:
        """Put this in the place of the file, at one instant, if no newer holder has entered."""
        content = a_body(data)
        with self._inside(path, holder, lock, writes=True) as (file, _, _):
            try:
                mode: int | None = stat.S_IMODE(os.stat(file).st_mode)
            except FileNotFoundError:
                mode = None
            folder, name = os.path.split(file)
            replace_file(file, os.path.join(folder, f".{name}.fence.data"), content, mode=mode)

    def append(self, path: Path, holder: Any, data: bytes | str, *, lock: str | None = None) -> None:
        """Add this to the end of the file, all of it or nothing, if no newer holder has entered.

        What a crash in the middle left is cut off again when the next holder enters.
        """
        content = a_body(data)
        with self._inside(path, holder, lock, writes=True) as (file, place, marks):
            new = not os.path.exists(file)
            start = 0 if new else os.path.getsize(file)
            place.write(marks._replace(appending=Appending(start, len(content), zlib.crc32(content))))
            fd = open_file(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                write_all(fd, content)
                os.fsync(fd)
            finally:
                os.close(fd)
            if new:
                sync_folder(os.path.dirname(file))
            place.write(marks)

    def look(self, path: Path, lock: str) -> Mark | None:
        """The mark of this lock at the file."""
        folder, name = place_of(path)
        return MarkFile(folder, name, os.path.join(folder, name)).read().by_lock.get(lock)

    @contextmanager
    def _inside(
        self, path: Path, holder: Any, lock: str | None, *, writes: bool
    ) -> Iterator[tuple[str, MarkFile, Marks]]:
        """Check and access as one act: nobody else is inside until the block ends."""
        folder, name = place_of(path)
        file = os.path.join(folder, name)
        offer = offer_of(file, holder, lock, self.exact)
        place = MarkFile(folder, name, file)
        leave = place.admit(offer, writes=writes, exact=self.exact, patience=self.patience, mend=partial(_mend, file))
        try:
            yield file, place, leave.marks
        finally:
            leave()


def _mend(file: str, appending: Appending) -> None:
    """Cut off what an append that did not reach its end left behind; leave one that did."""
    try:
        fd = open_file(file, os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        added = os.pread(fd, appending.length, appending.start)
        if len(added) == appending.length and zlib.crc32(added) == appending.check:
            return
        if os.fstat(fd).st_size > appending.start:
            os.ftruncate(fd, appending.start)
            os.fsync(fd)
    finally:
        os.close(fd)


class AsyncFileFence:
    """The same, awaited: the disk is waited for in a thread. A cancelled write has ended before the cancel goes on."""

    def __init__(self, *, exact: bool = False, patience: float = 30.0) -> None:
        self._blocking = FileFence(exact=exact, patience=patience)

    enter = awaited(FileFence.enter)
    read = awaited(FileFence.read)
    replace = awaited(FileFence.replace)
    append = awaited(FileFence.append)
