"""Signals as a stream: whoever supervises a command reads them one by one, and sleeps in between."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType

from ..runtime.insisting import insist
from ..runtime.polling import readable

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
)
LEAVING = frozenset(FORWARDED) - {signal.SIGWINCH}
"""Those that end a wait for the lock."""
ASKING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Those that ask a program to end."""
WATCHED = (*FORWARDED, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD)

WITHDRAWAL = 3.0
"""Longer than a withdrawal from the line takes, even from a store that does not answer."""
KNOCK = 0
"""Not a signal: something else happened that is worth a look."""


class Stopped(BaseException):
    """A signal came while there was no command yet that it could be forwarded to."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Collects signals from the moment it is made, so that none is lost between waiting and running."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._waiting = self._catches_stops = False
        self._patient_until = 0.0
        insist(signal.SIGTERM, Stopped, self._be_impatient)
        # First: one that came between would be caught, and written nowhere.
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in WATCHED:
            # What was ignored when we came (nohup, a shell's background job) stays ignored, for the command too.
            if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._came)
        # A stop while we wait in line is the terminal's business; there is no command yet that has to stop with us.
        self._stops = signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN
        if self._stops:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def _came(self, number: int, frame: FrameType | None) -> None:
        # The interpreter has written the number to the pipe already. The withdrawal that follows the first must not
        # be cut short by a second, as long as it can still be at work.
        if self._waiting and number in LEAVING and time.monotonic() >= self._patient_until:
            self._patient_until = time.monotonic() + WITHDRAWAL
            raise Stopped(number)

    def _be_impatient(self) -> None:
        self._patient_until = 0.0

    def wait_in_line(self) -> None:
        """From now on a signal that asks us to go raises Stopped in the main thread."""
        self._waiting = True
        for number in self.wait(0):
            if number in LEAVING:
                raise Stopped(number)

    def run_command(self) -> None:
        """From now on signals are only collected, to be forwarded."""
        self._waiting = False
        # From another thread it cannot be caught: then it stops us without the command, which is not of our group.
        if self._stops and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTSTP, self._came)
            self._catches_stops = True

    def knock(self) -> None:
        """Make `wait` return; from any thread."""
        try:
            os.write(self._write, bytes([KNOCK]))
        except BlockingIOError:  # it is full of reasons to return already
            pass

    def wait(self, seconds: float) -> list[int]:
        """The signals that came, in order; none when the time is over."""
        readable(max(seconds, 0.0), self._read)
        try:
            return [number for number in os.read(self._read, 4096) if number != KNOCK]
        except BlockingIOError:
            return []

    def stop_with_the_job(self) -> None:
        """Stop ourselves and our process group as Ctrl-Z would have; returns when we are continued."""
        if not self._stops:
            return
        if self._catches_stops:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        if self._catches_stops:
            signal.signal(signal.SIGTSTP, self._came)

    def stop_alone(self) -> None:
        """Stop ourselves; returns when we are continued."""
        os.kill(os.getpid(), signal.SIGSTOP)
