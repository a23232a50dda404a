"""The controlling terminal: handed to the command's group while it runs, taken back after."""

from __future__ import annotations

import os
import signal
import sys


class Terminal:
    """The terminal that Ctrl-C and Ctrl-Z come from, if there is one."""

    def __init__(self) -> None:
        try:
            self._file: int | None = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            self._file = None
        self._given_to: int | None = None

    @property
    def given(self) -> bool:
        """Whether the command's group has it."""
        return self._given_to is not None

    def foreground(self) -> int | None:
        """The group in the foreground."""
        if self._file is None:
            return None
        try:
            return os.tcgetpgrp(self._file)
        except OSError:
            return None

    def ours(self) -> bool:
        """Whether our own group is in the foreground."""
        return self.foreground() == os.getpgrp()

    def give(self, group: int) -> bool:
        """Put the command's group into the foreground, if that is our place to give."""
        if not self.ours() or not self._put(group):
            return False
        self._given_to = group
        return True

    def take(self) -> None:
        """Put our own group back, unless somebody else has taken the terminal meanwhile."""
        group, self._given_to = self._given_to, None
        if group is not None and self.foreground() == group:
            self._put(os.getpgrp())

    def _put(self, group: int) -> bool:
        assert self._file is not None
        # From the background this call would stop us, unless the signal that does so is blocked.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        try:
            os.tcsetpgrp(self._file, group)
        except OSError:
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True


def interactive() -> bool:
    """Whether the command will talk with a person; in a pipe the neighbours may need the terminal themselves."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout is not None and sys.stdout.isatty()


def asks() -> bool:
    """Whether there is a person to ask; without a stdin there is nobody."""
    return sys.stdin is not None and sys.stdin.isatty()
