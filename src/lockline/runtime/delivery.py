"""What happened, handed to the user's own code in a thread of its own: in order, one at a time, keeping nobody."""

from __future__ import annotations

import logging
import threading
from _thread import allocate_lock, get_ident, start_new_thread
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from .fork import tell_around_fork

T = TypeVar("T")
log = logging.getLogger("lockline")

LINGER: Final = 1.0
"""How long the thread stays with nothing to do, so that a busy client does not start one for each thing."""
A_FORK: Final = 0.25
"""How long a fork waits for the piece that is just being handled, and the next piece for a fork."""


class Delivery(Generic[T]):
    """Calls `handle` with each thing that was put, in the order in which they were.

    To put is to append and at most to wake a thread: it takes no lock, and may be cut or called from anywhere. A fork waits a
    moment for the piece that is being handled, so that the child does not inherit a mutex of the user's code that nobody gives back.
    """

    def __init__(self, handle: Callable[[T], object], name: str) -> None:
        self._handle = handle
        self._name = name
        self._begin()
        tell_around_fork(self)

    def _begin(self) -> None:
        self._box: deque[T] = deque()
        self._seat = allocate_lock()
        """Taken by the one thread that is at it; who finds it taken has nothing to do."""
        self._at_it = 0
        self._gate = allocate_lock()
        self._gate.acquire()
        self._sleeps = False
        self._busy = allocate_lock()
        self._handling = False
        self._paused = False

    def __len__(self) -> int:
        """How many things wait to be handled."""
        return len(self._box)

    @property
    def idle(self) -> bool:
        """Whether all is handled that was put; for the thread that handles it always."""
        return (not self._box and not self._handling) or self._at_it == get_ident()

    def put(self, thing: T) -> None:
        """Have it handled; returns at once."""
        self._box.append(thing)
        self.nudge()

    def nudge(self) -> None:
        """See to it that somebody handles what was put: whoever did put it may have been cut short."""
        if self._sleeps:
            try:
                self._gate.release()
            except RuntimeError:
                pass  # it has been woken already
        elif not self._seat.locked():
            try:
                # A bare thread is started in one instruction, and no signal reaches it.
                start_new_thread(self._launch, ())
            except RuntimeError:
                pass  # no thread to be had now; it lies there for the next one who puts something

    def _launch(self) -> None:
        try:
            threading.Thread(target=self._work, args=(self._box,), name=self._name, daemon=True).start()
        except RuntimeError:
            pass

    def _work(self, box: deque[T]) -> None:
        # The box tells a thread that came out of a fork in its own listener that it is the parent's.
        while self._box is box and box:
            if not self._seat.acquire(False):
                return
            seat = self._seat
            self._at_it = get_ident()
            try:
                self._empty(box)
            finally:
                self._sleeps = False
                if self._box is box:
                    self._at_it = 0
                    seat.release()
            # Whoever put something after the last look, and found the seat taken, relies on this one.

    def _empty(self, box: deque[T]) -> None:
        while self._box is box:
            while box and self._box is box:
                self._deliver(box)
            self._sleeps = True
            # After that: whoever puts something from here on wakes us.
            woken = bool(box) or self._gate.acquire(True, LINGER)
            self._sleeps = False
            if not woken and not box:
                return

    def _deliver(self, box: deque[T]) -> None:
        busy = self._busy
        if not busy.acquire(True, 2 * A_FORK):
            # A fork takes no longer; its end was cut short, and nobody will give that back.
            busy = self._busy = allocate_lock()
            busy.acquire()
        self._handling = True
        try:
            # Out of the box first: a piece that is being handled at a fork is not handled again in the child.
            self._handle(box.popleft())
        except Exception:
            log.exception("%s met an unexpected error and goes on", self._name)
        finally:
            self._handling = False
            try:
                busy.release()
            except RuntimeError:
                pass

    # -- around a fork -----------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Wait for the piece that is being handled, unless it is that one which forks."""
        if self._at_it == get_ident():
            return
        self._paused = self._busy.acquire(True, A_FORK)

    def after_fork(self) -> None:
        """In the parent: go on."""
        if self._paused:
            self._paused = False
            try:
                self._busy.release()
            except RuntimeError:
                pass

    def forked(self) -> None:
        """In a child: nothing was put, and nobody is at it."""
        self._begin()
