"""Stand by a command until its whole group has stopped, and stop it in time when its lease ends."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..core.handle import Handle
from ..errors import LeaseLost
from ..kit.sync import Slot
from ..runtime import clock
from .group import LAST_WORDS, ProcessGroup, adopt_orphans, why_not
from .signals import ASKING, FORWARDED, Signals
from .terminal import Terminal, interactive
from .text import printable, say
from .watchdog import Watchdog

LOOK_EVERY = 1.0
"""Renewals move the deadline without a word to us, and a timer sleeps with the machine: look at least this often."""
GROUP_LOOKS = (0.005, 0.25)
"""Grandchildren whose parent is not ours end without a signal to us: look for them, less and less often."""


def margin(ttl: float) -> float:
    """How long before the deadline the last process is killed; dying takes a moment too."""
    return min(0.1, ttl / 50)


class Ending(NamedTuple):
    """How it ended."""

    code: int
    problem: str = ""
    """Why it never began."""
    lost: LeaseLost | None = None
    """Why the command was stopped; None when it ended by itself."""
    asked: int | None = None
    """The signal by which we were asked to go, which was passed on to the command."""


class Prepared(NamedTuple):
    """A command that can be begun: all that must be there before there is any thread or connection."""

    group: ProcessGroup
    watchdog: Watchdog
    signals: Signals

    @contextmanager
    def in_line(self) -> Iterator[None]:
        """While this block waits for its turn, a signal that asks us to go raises Stopped."""
        self.signals.wait_in_line()
        try:
            yield
        finally:
            self.signals.run_command()


@contextmanager
def prepared(command: tuple[str, ...], output: int | None = None) -> Iterator[Prepared]:
    """The command, its group and its watchdog; if it has not begun by the end of this block, it never will.

    With `output` that file is its stdout, else ours.
    """
    adopt_orphans()
    group = ProcessGroup(command, output)
    watchdog = Watchdog()
    signals = Signals()
    try:
        yield Prepared(group, watchdog, signals)
    finally:
        group.abandon()
        watchdog.dismiss()


class Supervisor:
    """One command under one lease; without a lease nothing but the command itself ends its time."""

    def __init__(self, prepared: Prepared, lease: Handle | Slot[Any] | None, *, grace: float = 0.0) -> None:
        self._group, self._watchdog, self._signals = prepared
        self._lease = lease
        self._terminal = Terminal()
        self._grace = grace
        self._margin = 0.0 if lease is None else margin(lease.ttl)
        self._lost: LeaseLost | None = None
        self._kill_at: float | None = None
        self._killed = False
        self._powerless = False
        self._next_look = GROUP_LOOKS[0]
        self._asked: int | None = None

    def run(self, environment: Mapping[str, str]) -> Ending:
        """Let the command begin, and wait until its whole group has ended."""
        try:
            # Before it begins: whatever becomes of us, the watchdog knows whom to stop, and when.
            self._watchdog.protect(self._group.id, clock.now() + self._remaining() - self._margin / 2)
            self._group.start(environment)
        except OSError as problem:
            return Ending(*why_not(problem, printable(self._group.command[0])))
        try:
            return self.wait()
        except BaseException:
            # Whatever went wrong in here: nobody is let in over a command that runs.
            self._group.send(signal.SIGKILL)
            raise
        finally:
            self._terminal.take()

    def wait(self) -> Ending:
        """Wait for the last process of the group."""
        self._mind_the_lease()
        if self._lease is not None:
            self._lease.on_lost(self._signals.knock)
        if interactive():
            # It may have asked for the terminal a moment before, and stopped: then we are told of that, and let it go on.
            self._terminal.give(self._group.id)
        while True:
            self._mind_the_lease()
            self._group.reap()
            if not self._group.alive():
                break
            self._mind_the_stop()
            for number in self._signals.wait(self._patience()):
                self._pass_on(number)
        assert self._group.code is not None
        # The release may wait for a silent store past the deadline that the watchdog has.
        self._watchdog.leave_alone()
        return Ending(self._group.code, lost=self._lost, asked=self._asked)

    def _remaining(self) -> float:
        return math.inf if self._lease is None else self._lease.remaining()

    def _patience(self) -> float:
        now = clock.now()
        waits = [LOOK_EVERY]
        if self._kill_at is None:
            waits.append(self._remaining() - self._margin - self._grace)
        elif not self._killed:
            waits.append(self._kill_at - now)
        if self._group.code is not None:
            waits.append(self._next_look)
            self._next_look = min(self._next_look * 2, GROUP_LOOKS[1])
        return max(min(waits), 0.0)

    def _mind_the_lease(self) -> None:
        now = clock.now()
        left = self._remaining()
        if self._kill_at is None:
            if left > self._margin + self._grace:
                self._watchdog.protect(self._group.id, now + left - self._margin / 2)
                return
            self._lost = self._reason()
            if left > 0:
                # Nobody else can hold it yet. A renewal that gets through from here on changes nothing: the command
                # has been told to end.
                self._kill_at = now + left - self._margin
            elif self._lost.reason == "expired":
                self._kill_at = now
            else:
                # Evicted: the next one is in already.
                self._kill_at = now + min(LAST_WORDS, self._grace)
            self._watchdog.protect(self._group.id, self._kill_at + self._margin / 2)
            if self._kill_at > now:
                self._tell(signal.SIGTERM)
        elif left <= 0:
            # Evicted while it was on its way out: the time it was given is no longer ours to give.
            self._kill_at = min(self._kill_at, now + LAST_WORDS)
        if now >= self._kill_at and not self._killed:
            self._killed = True
            self._tell(signal.SIGKILL)

    def _tell(self, number: int) -> None:
        if not self._group.send(number) and not self._powerless:
            self._powerless = True
            say("the command runs as another user and cannot be stopped by this one")
        # A stopped process takes note of TERM only when it goes on.
        self._group.send(signal.SIGCONT)

    def _reason(self) -> LeaseLost:
        lease = self._lease
        assert lease is not None
        try:
            lease.check()
        except LeaseLost as lost:
            return lost
        return LeaseLost(
            lease.name, token=lease.token, reason="expired", cause="silent", detail="it was not renewed in time"
        )

    def _pass_on(self, number: int) -> None:
        if number in FORWARDED:
            if number in ASKING:
                self._asked = number
            self._group.send(number)
        elif number == signal.SIGTSTP:
            self._group.send(signal.SIGTSTP)
            self._terminal.take()
            self._signals.stop_alone()
            self._go_on()
        elif number == signal.SIGCONT:
            self._go_on()

    def _mind_the_stop(self) -> None:
        """The command was stopped: give it the terminal if that is what it stopped for, else stop with it."""
        number, self._group.stopped_by = self._group.stopped_by, None
        if number is None or self._killed:
            return
        wants_terminal = number in (signal.SIGTTIN, signal.SIGTTOU)
        if wants_terminal and (self._terminal.foreground() == self._group.id or self._terminal.give(self._group.id)):
            self._group.send(signal.SIGCONT)
        elif self._terminal.given:
            # Ctrl-Z. The shell can only have its terminal back when the job it knows, which is us, has stopped too.
            self._terminal.take()
            self._signals.stop_with_the_job()
            self._go_on()

    def _go_on(self) -> None:
        """Let the command go on after a stop, unless the lease ran out meanwhile."""
        self._mind_the_lease()
        if interactive():
            self._terminal.give(self._group.id)
        if not self._killed:
            self._group.send(signal.SIGCONT)
