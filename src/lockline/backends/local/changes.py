"""Changes of the file, as the kernel tells of them: nobody who changes it has to know who watches.

A commit is written to SQLite's log first, and `inotify` tells of that; so a line that nobody watches costs nothing. Each word is asked for anew,
so that a file that is much in use wakes one who watches no more often than that one looks.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ..watchers import Watchers

MODIFIED: Final = 0x2
GONE: Final = 0x4 | 0x400 | 0x800
"""Its last name was removed, or it was, or it was moved: whoever looks makes another."""
ONCE: Final = 0x80000000
ANY: Final = b"log"


class Changes:
    """The next change of a log, for those who ask for it. OSError where this system does not tell."""

    def __init__(self, log: Path) -> None:
        import ctypes

        self._log = os.fsencode(log)
        self._watchers: Watchers[str] = Watchers()
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "inotify_init1"):
            raise OSError("no inotify here")
        self._add = libc.inotify_add_watch
        self._errno = ctypes.get_errno
        self.fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(self._errno(), "no inotify to be had")

    def fileno(self) -> int:
        """What becomes readable with a change."""
        return self.fd

    def watch(self, watcher: str) -> bool:
        """Tell this one of the next change; whether that will be."""
        # First: a change from here on finds it.
        self._watchers.add(ANY, watcher)
        return self._add(self.fd, self._log, MODIFIED | GONE | ONCE) >= 0  # type: ignore[no-any-return]

    def unwatch(self, watcher: str) -> None:
        """Nobody is there to be told any more."""
        self._watchers.discard(watcher)

    def take(self) -> list[str]:
        """Whom to tell, now that there was a change."""
        try:
            os.read(self.fd, 4096)
        except OSError:
            return []  # another thread has read it, or it is closed
        return self._watchers.take(ANY)

    def close(self) -> None:
        """Let go of it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
