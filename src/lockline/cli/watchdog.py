"""A second pair of eyes: kills the group when `lockline run` itself no longer can.

A `lockline run` that is killed cannot stop its command, and one that is frozen cannot renew the lease. In both cases the
next in line gets the lock while the old command works on. The watchdog is a small process that knows the group and the
deadline. The end of the line between them tells it of the death, its own clock of the deadline.

Where a store knows at once of a holder's death, by a handle that the kernel closes, the watchdog has that handle too: the
holder counts as alive until the watchdog has seen the end of the group, however late it gets its turn on a busy machine.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import NoReturn

from ..runtime import clock
from ..runtime.polling import readable
from .group import has_ended

LOOK_EVERY = 1.0
"""A timer sleeps with the machine and the deadline does not: look at the clock at least this often."""
LAST_LOOKS = (0.001, 0.1)
"""How often to look whether the last of a killed group has gone, less and less often."""
MOST_FILES = 65536


class Watchdog:
    """The watchdog, from the side of `lockline run`."""

    def __init__(self) -> None:
        # Forked before there is any thread or connection that a child could inherit in a broken state.
        self._line, theirs = socket.socketpair()
        self._line.setblocking(False)
        self._told: tuple[int, float] | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become_watchdog(theirs)
        theirs.close()

    def hold(self, handle: int) -> None:
        """Have this handle too, and close it only when the group has ended."""
        try:
            socket.send_fds(self._line, [b"0 0\n"], [handle])
        except OSError:
            pass

    def protect(self, group: int, deadline: float) -> None:
        """Kill the group if we die, or at that moment unless we name a later one before it."""
        deadline = round(deadline, 3)
        if self._told == (group, deadline):
            return
        self._told = (group, deadline)
        self._say(f"{group} {deadline!r}\n")

    def leave_alone(self) -> None:
        """The group has ended, or never began. Its number may soon be another group's: send it nothing any more."""
        self._say("0 0\n")

    def dismiss(self) -> None:
        """End the watchdog; it leaves the group alone."""
        self.leave_alone()
        self._line.close()
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:  # waited for already, with the other children
            pass

    def _say(self, line: str) -> None:
        try:
            self._line.send(line.encode())
        except OSError:  # somebody killed the watchdog; we still have our own eyes
            pass


def _become_watchdog(line: socket.socket) -> NoReturn:
    try:
        # Of its own group, deaf and without the user's files: what ends us must not end the watchdog, and a watchdog that
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
        os.closerange(3, line.fileno())
        os.closerange(line.fileno() + 1, MOST_FILES)
        _watch(line)
    finally:
        os._exit(0)


def _watch(line: socket.socket) -> None:
    group, deadline, text = 0, 0.0, b""
    while True:
        left = deadline - clock.now() if group else LOOK_EVERY
        if group and left <= 0:
            _kill(group)
            left = LOOK_EVERY
        if not readable(min(left, LOOK_EVERY) if group else None, line):
            continue
        # The handles that come along stay open until we end; nothing else is done with them.
        news, _, _, _ = socket.recv_fds(line, 65536, 8)
        if not news:
            if group:
                _see_the_end(group, deadline)
            return
        *lines, text = (text + news).split(b"\n")
        if lines:
            first, second = lines[-1].split()
            group, deadline = int(first), float(second)


def _see_the_end(group: int, deadline: float) -> None:
    """Kill the group and stay until it has ended; past the deadline there is no place in the line left to hold."""
    pause, longest = LAST_LOOKS
    while True:
        _kill(group)
        if has_ended(group) or clock.now() >= deadline:
            return
        time.sleep(pause)
        pause = min(pause * 2, longest)


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
