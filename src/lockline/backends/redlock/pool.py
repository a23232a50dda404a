"""Bundles of connections for threads, handed over in order of arrival, and a bell that wakes one of them.

An exception may strike between any two steps of Python: Ctrl-C, an alarm, a soft time limit. So nothing here is counted up in one
step and down in another, and no lock is held around a piece of work. What exists is what is alive: a bundle that nobody has any more
is garbage, and its place is free by that alone. Who waits is known by a weak reference, and looks by himself now and then.
"""

from __future__ import annotations

import weakref
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ...runtime import clock

if TYPE_CHECKING:
    from .connection_blocking import Bundle

LOOK_AGAIN = 0.1
"""Seconds after which whoever stands in the line looks unasked whether it still moves."""
OVERDUE = 30.0
"""Seconds after which a bundle that was taken and not given back counts as lost, though something still refers to it: the traceback
of an exception that somebody keeps. No conversation lasts that long."""


class Bell:
    """Wakes one thread, now or when it next waits; one instruction each way."""

    __slots__ = ("__weakref__", "_gate")

    def __init__(self) -> None:
        self._gate: LockType = allocate_lock()
        self._gate.acquire()

    def ring(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:
            pass  # rung already

    def wait(self, seconds: float) -> bool:
        """Whether it was rung by then."""
        return self._gate.acquire(True, max(0.0, min(seconds, 60.0)))


class Pool:
    """At most so many bundles, whatever the number of threads."""

    def __init__(self, most: int, make: Callable[[], Bundle]) -> None:
        self._most = most
        self._make = make
        self.idle: deque[Bundle] = deque()
        self._line: deque[weakref.ref[Bell]] = deque()
        """Who waits. While there is anybody, newcomers go to its end, and do not look at what is idle."""
        self._made: list[weakref.ref[Bundle]] = []

    def take(self, until: float) -> Bundle | None:
        """A bundle of the caller's own until it is given back; None if none came by then."""
        bundle = self.take_idle()
        if bundle is not None:
            return bundle
        bell = Bell()
        mine = weakref.ref(bell)
        # A new bundle is made by the first in the line alone: so there are never too many.
        self._line.append(mine)
        try:
            return self._wait(mine, bell, until)
        finally:
            self._forget(mine)
            # One ring may have stood for two bundles.
            if self._line and (self.idle or self._has_room()):
                self._call_next()

    def take_idle(self) -> Bundle | None:
        """One that nobody waits for, if there is any."""
        if self._line:
            return None
        try:
            return self.idle.pop()
        except IndexError:
            return None

    def _wait(self, mine: weakref.ref[Bell], bell: Bell, until: float) -> Bundle | None:
        ahead: object = None
        while True:
            if self._first() in (mine, None):
                bundle = self._idle_or_new()
                if bundle is not None:
                    return bundle
            left = until - clock.now()
            if left <= 0:
                return None
            if bell.wait(min(left, LOOK_AGAIN)):
                continue
            first = self._first()
            if first is not None and first is ahead and first is not mine and (self.idle or self._has_room()):
                # It had all this time and did not come: struck down, or held up by a signal handler. It may come again.
                self._forget(first)
            elif mine not in self._line:
                self._line.append(mine)
            ahead = first

    def _first(self) -> weakref.ref[Bell] | None:
        """Who is the next; those who are no more are passed over."""
        while True:
            try:
                first = self._line[0]
            except IndexError:
                return None
            if first() is not None:
                return first
            self._forget(first)

    def _forget(self, turn: weakref.ref[Bell]) -> None:
        try:
            self._line.remove(turn)
        except (ValueError, IndexError):
            pass  # passed over, and gone already; or the line changed under the search, and it is looked at again

    def _idle_or_new(self) -> Bundle | None:
        try:
            return self.idle.pop()
        except IndexError:
            pass
        if not self._has_room():
            return None
        bundle = self._make()
        self._made = [ref for ref in self._made if self._counts(ref)] + [weakref.ref(bundle)]
        return bundle

    def _has_room(self) -> bool:
        return sum(map(self._counts, self._made)) < self._most

    def _counts(self, ref: weakref.ref[Bundle]) -> bool:
        bundle = ref()
        if bundle is None or bundle.gone:
            return False
        return clock.now() - bundle.began < OVERDUE or bundle in self.idle

    def give_back(self, bundle: Bundle) -> None:
        """It is idle and in order."""
        self.idle.append(bundle)
        if self._line:
            self._call_next()

    def dropped(self) -> None:
        """A bundle is of no use any more, so there is room for another."""
        if self._line:
            self._call_next()

    def _call_next(self) -> None:
        first = self._first()
        bell = None if first is None else first()
        if bell is not None:
            bell.ring()

    def tidy(self) -> bool:
        """Take in what came late for the bundles that are idle; whether anything is still due on them. For the background."""
        due = False
        for _ in range(len(self.idle)):
            try:
                # The other end of what `take` pops: those are the ones least used.
                bundle = self.idle.popleft()
            except IndexError:
                break
            try:
                due = bundle.tidy() or due
            finally:
                self.idle.appendleft(bundle)
                self.dropped()
        return due

    def empty(self) -> list[Bundle]:
        """Every idle bundle, taken out."""
        taken = []
        while self.idle:
            try:
                taken.append(self.idle.pop())
            except IndexError:
                break
        return taken
