"""Two numbers per lock that its holders add one to: one whose file checks tokens, one that trusts whoever comes."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from ...fence.rule import Mark, Offer, may_enter, may_write
from .history import RegisterRecord

_WIDTH: Final = 160


class File:
    """A few words in a file, for all processes of this machine; whoever is killed in between leaves the words as they were."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else reads or writes meanwhile. A process that is stopped in here stops the others, too: keep it short."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def words(self) -> list[str]:
        """What stands there."""
        return os.pread(self._file, _WIDTH, 0).decode().split(",")

    def put(self, *words: object) -> None:
        """Let this stand there, by one system call."""
        os.pwrite(self._file, ",".join(map(str, words)).ljust(_WIDTH).encode(), 0)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._file)


class Fenced:
    """The number that lets in only who has the highest token so far; the rule is that of every fence of Lockline's."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = File(folder / f"fenced-{quote(name, safe='')}")
        self._name = name

    def _state(self) -> tuple[Mark | None, int, int, int]:
        words = self._file.words()
        if len(words) < 5:
            return None, 0, 0, 0
        return Mark(int(words[0]), words[1]), int(words[2]), int(words[3]), int(words[4])

    def enter(self, token: int, grant: str) -> int | None:
        """The number, for a holder that comes in; None if a newer one has been here."""
        offer = Offer(self._name, token, grant)
        with self._file.alone():
            mark, writes, value, refused = self._state()
            if not may_enter(mark, offer):
                self._refuse(mark, writes, value, refused)
                return None
            self._file.put(token, grant, writes, value, refused)
            return value

    def write(self, token: int, grant: str, new: int) -> bool:
        """Whether the number is now this one."""
        offer = Offer(self._name, token, grant)
        with self._file.alone():
            mark, writes, value, refused = self._state()
            if not may_write(mark, offer):
                self._refuse(mark, writes, value, refused)
                return False
            self._file.put(token, grant, writes + 1, new, refused)
            return True

    def _refuse(self, mark: Mark | None, writes: int, value: int, refused: int) -> None:
        assert mark is not None
        self._file.put(mark.token, mark.grant, writes, value, refused + 1)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


class Unfenced:
    """The number that is written by whoever thinks that it holds the lock."""

    def __init__(self, folder: Path, name: str) -> None:
        self._file = File(folder / f"unfenced-{quote(name, safe='')}")

    def _state(self) -> tuple[int, int]:
        words = self._file.words()
        return (int(words[0]), int(words[1])) if len(words) > 1 else (0, 0)

    def read(self) -> int:
        """The number."""
        with self._file.alone():
            return self._state()[1]

    def write(self, new: int) -> None:
        """Let the number be this one."""
        with self._file.alone():
            self._file.put(self._state()[0] + 1, new)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def fenced(folder: Path, name: str) -> RegisterRecord:
    """What became of the fenced number."""
    register = Fenced(folder, name)
    try:
        _, writes, value, refused = register._state()
    finally:
        register.close()
    return RegisterRecord(writes, value, refused)


def unfenced(folder: Path, name: str) -> RegisterRecord:
    """What became of the other one."""
    register = Unfenced(folder, name)
    try:
        return RegisterRecord(*register._state())
    finally:
        register.close()
