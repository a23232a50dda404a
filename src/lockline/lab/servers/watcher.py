"""Ends the servers of a program that was killed, and takes their folders away: a shell of its own, which knows both and sees the
program's end of a pipe go.

Not the kernel's parent-death signal: that one comes when the *thread* ends that started the server, and it is forgotten by a
server that changes its user, as MariaDB does.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

SHELL = "/bin/sh"
PROGRAM = """
cd /
servers=
while read -r sign what; do
  if [ "$sign" = / ]; then
    set -- "$@" "$what"
    continue
  fi
  left=
  for each in $servers; do [ "$each" = "$what" ] || left="$left $each"; done
  [ "$sign" = + ] && left="$left $what"
  servers=$left
done
# Nobody writes any more: the program is gone, and whoever it had not ended yet goes with it.
[ -z "$servers" ] || kill -9 $servers
# Who is about to die may still write a file.
[ $# = 0 ] || /bin/rm -rf "$@" || { sleep 1; /bin/rm -rf "$@"; }
"""


class ServerWatcher:
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

    def takes_away(self, folder: Path) -> None:
        """This folder is to go with this process; no matter if it has gone before."""
        path = os.path.abspath(folder)
        if "\n" not in path:  # one line is one folder, and nobody gets to name another one by it
            self._say(f"/ {path}\n")

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


WATCHER = ServerWatcher()
