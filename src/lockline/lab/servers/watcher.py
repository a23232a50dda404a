"""Ends the servers of a program that was killed: a shell of its own, which knows their pids and sees the program's end of a pipe go.

Not the kernel's parent-death signal: that one comes when the *thread* ends that started the server, and it is forgotten by a
server that changes its user, as MariaDB does.
"""

from __future__ import annotations

import contextlib
import os
import threading

SHELL = "/bin/sh"
PROGRAM = """
cd /
servers=
while read -r sign pid; do
  left=
  for each in $servers; do [ "$each" = "$pid" ] || left="$left $each"; done
  [ "$sign" = + ] && left="$left $pid"
  servers=$left
done
# Nobody writes any more: the program is gone, and whoever it had not ended yet goes with it.
[ -z "$servers" ] || kill -9 $servers
"""


class Watcher:
    """Begun with the first server; it ends by itself when this process does, whichever way."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._line: int | None = None

    def guards(self, pid: int) -> None:
        """This server is to end with this process."""
        self._say(f"+ {pid}\n")

    def forgets(self, pid: int) -> None:
        """This server has ended, and its number may become another's."""
        self._say(f"- {pid}\n")

    def _say(self, words: str) -> None:
        with self._mutex:
            if self._line is None:
                self._line = self._begin()
        with contextlib.suppress(OSError):  # without it a server lives as long as it is not stopped: no worse than that
            os.write(self._line, words.encode())

    @staticmethod
    def _begin() -> int:
        theirs, ours = os.pipe()
        silent = [(os.POSIX_SPAWN_OPEN, end, os.devnull, os.O_WRONLY, 0) for end in (1, 2)]
        # In a group of its own: a Ctrl-C is for the program. No environment: whatever looks for the program's processes by that finds none.
        os.posix_spawn(
            SHELL, [SHELL, "-c", PROGRAM], {}, file_actions=[(os.POSIX_SPAWN_DUP2, theirs, 0), *silent], setpgroup=0
        )
        os.close(theirs)
        return ours


WATCHER = Watcher()
