"""Wait for files as `select` does, also for those with numbers above 1,023."""

from __future__ import annotations

import math
import select
from typing import Protocol


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def readable(seconds: float | None, *files: int | HasFileno) -> set[int]:
    """The numbers of those that can be read, or have ended, by then; None waits for ever."""
    return _ready(select.POLLIN, seconds, files)


def writable(seconds: float | None, *files: int | HasFileno) -> set[int]:
    """The numbers of those that take something by then."""
    return _ready(select.POLLOUT, seconds, files)


def _ready(what: int, seconds: float | None, files: tuple[int | HasFileno, ...]) -> set[int]:
    poll = select.poll()
    for file in files:
        poll.register(file, what)
    # Rounded up: a wait that ends a bit too early is begun again and again.
    return {number for number, _ in poll.poll(None if seconds is None else math.ceil(seconds * 1000))}
