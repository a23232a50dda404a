"""A second pair of eyes: kills the group when `lockline run` itself no longer can.

A `lockline run` that is killed cannot stop its command, and one that is frozen cannot renew the lease. In both cases the
next in line gets the lock while the old command works on. The guard is a small process that knows the group and the
deadline. The end of the pipe tells it of the death, its own clock of the deadline.
"""

from __future__ import annotations

import os
import select
import signal
from typing import NoReturn

from ..core import clock

LOOK_EVERY = 1.0
"""A timer sleeps with the machine and the deadline does not: look at the clock at least this often."""


MOST_FILES = 65536


class Guard:
    """The guard, from the side of `lockline run`."""

    def __init__(self) -> None:
        # Forked before there is any thread or connection that a child could inherit in a broken state.
        read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._told: tuple[int, float] | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _stand_guard(read, self._write)
        os.close(read)

    def protect(self, group: int, deadline: float) -> None:
        """Kill the group if we die, or at that moment unless we name a later one before it."""
        deadline = round(deadline, 3)
        if self._told == (group, deadline):
            return
        self._told = (group, deadline)
        self._say(f"{group} {deadline!r}\n")

    def dismiss(self) -> None:
        """The group has ended, or never began: leave it alone."""
        self._say("0 0\n")
        os.close(self._write)
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:  # waited for already, with the other children
            pass

    def _say(self, line: str) -> None:
        try:
            os.write(self._write, line.encode())
        except OSError:  # somebody killed the guard; we still have our own eyes
            pass


def _stand_guard(read: int, other_end: int) -> NoReturn:
    try:
        os.close(other_end)
        # Of its own group, deaf and without the user's files: what ends us must not end the guard, and a guard that
        # lives a moment longer must not keep a pipe open that somebody reads to its end.
        os.setpgid(0, 0)
        for number in range(1, signal.NSIG):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):  # KILL and STOP
                continue
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        os.closerange(3, read)
        os.closerange(read + 1, MOST_FILES)
        _watch(read)
    finally:
        os._exit(0)


def _watch(read: int) -> None:
    group, deadline, text = 0, 0.0, b""
    while True:
        left = deadline - clock.now() if group else LOOK_EVERY * 60
        if group and left <= 0:
            _kill(group)
            left = LOOK_EVERY
        ready, _, _ = select.select([read], [], [], min(left, LOOK_EVERY) if group else None)
        if not ready:
            continue
        news = os.read(read, 65536)
        if not news:
            if group:
                _kill(group)
            return
        *lines, text = (text + news).split(b"\n")
        if lines:
            first, second = lines[-1].split()
            group, deadline = int(first), float(second)


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
