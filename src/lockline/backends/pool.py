"""What blocking threads share, each for itself for a while, handed over in order of arrival: connections, or bundles of them.

An exception may strike between any two steps of Python: Ctrl-C, an alarm, a soft time limit. So nothing here is counted up in
one step and down in another, and no lock is held around a piece of work. What exists is what is alive: an item that nobody has any
more, and that is not among the free ones, is garbage, and so its place in the pool is free by that alone; a thread that was
struck down in the line is no longer there, because the line knows its people by weak references only. Whoever should have been
woken by it looks by himself, a little later.
"""

from __future__ import annotations

import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from ..runtime import clock
from ..runtime.blocking import ring

T = TypeVar("T")

LOOK_AGAIN = 0.1
"""Seconds after which whoever stands in the line looks unasked whether it still moves."""


class Turn:
    """One thread's place in the line, and the lock that it sleeps on."""

    __slots__ = ("__weakref__", "sleeps_on")

    def __init__(self) -> None:
        self.sleeps_on = allocate_lock()
        self.sleeps_on.acquire()


class SharedPool(Generic[T]):
    """At most so many, whatever the number of threads.

    `make` gives a new one, that takes no time to make; `counts` says of one whether it still takes up a place.
    """

    def __init__(self, most: int, make: Callable[[], T], counts: Callable[[T], bool]) -> None:
        self._most = most
        self._make = make
        self._counts = counts
        self.free: deque[T] = deque()
        self.line: deque[weakref.ref[Turn]] = deque()
        """Who waits. While there is anybody, newcomers go to its end, and do not look at what is free."""
        self._made: list[weakref.ref[T]] = []

    def take(self, until: float) -> T | None:
        """One of the caller's own until it is given back; None if none came by then."""
        item = self.take_free()
        if item is not None:
            return item
        turn = Turn()
        mine = weakref.ref(turn)
        # A new one is made by the first in the line alone: so there are never too many.
        self.line.append(mine)
        try:
            return self._wait(mine, turn, until)
        finally:
            self._forget(mine)
            # One call may have stood for two.
            self.make_room()

    def take_free(self) -> T | None:
        """One that nobody waits for, if there is any."""
        if self.line:
            return None
        try:
            return self.free.pop()
        except IndexError:
            return None

    def _wait(self, mine: weakref.ref[Turn], turn: Turn, until: float) -> T | None:
        ahead: object = None
        while True:
            if self._first() in (mine, None):
                item = self._free_or_new()
                if item is not None:
                    return item
            left = until - clock.now()
            if left <= 0:
                return None
            if turn.sleeps_on.acquire(True, min(left, LOOK_AGAIN)):
                continue
            first = self._first()
            if first is not None and first is ahead and first is not mine and (self.free or self._has_room()):
                # It had all this time and did not come: struck down, or held up by a signal handler. It may come again.
                self._forget(first)
            elif mine not in self.line:
                self.line.append(mine)
            ahead = first

    def _first(self) -> weakref.ref[Turn] | None:
        """Who is the next; those who are no more are passed over."""
        while True:
            try:
                first = self.line[0]
            except IndexError:
                return None
            if first() is not None:
                return first
            self._forget(first)

    def _forget(self, turn: weakref.ref[Turn]) -> None:
        try:
            self.line.remove(turn)
        except (ValueError, IndexError):
            pass  # passed over, and gone already; or the line changed under the search, and it is looked at again

    def _free_or_new(self) -> T | None:
        try:
            return self.free.pop()
        except IndexError:
            pass
        if not self._has_room():
            return None
        item = self._make()
        self._made = [ref for ref in self._made if self._takes_place(ref)] + [weakref.ref(item)]
        return item

    def _has_room(self) -> bool:
        return sum(map(self._takes_place, self._made)) < self._most

    def _takes_place(self, ref: weakref.ref[T]) -> bool:
        item = ref()
        return item is not None and self._counts(item)

    def give_back(self, item: T) -> None:
        """It is idle and in order."""
        self.free.append(item)
        if self.line:
            self.call_next()

    def make_room(self) -> None:
        """One may be free, or gone so that there is room for another: if somebody waits, it is his turn."""
        if self.line and (self.free or self._has_room()):
            self.call_next()

    def call_next(self) -> None:
        """Wake the first of those who wait."""
        first = self._first()
        turn = None if first is None else first()
        if turn is not None:
            ring(turn.sleeps_on)

    def take_all_free(self) -> list[T]:
        """Every free one, taken out."""
        taken = []
        while self.free:
            try:
                taken.append(self.free.pop())
            except IndexError:
                break
        return taken


class Closable(Protocol):
    """What is `gone` once it is closed."""

    gone: bool

    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class ConnectionPool(SharedPool[C]):
    """Connections to one server, until the client is closed."""

    def __init__(self, most: int, make: Callable[[], C]) -> None:
        super().__init__(most, make, lambda connection: not connection.gone)
        self._closed = False

    def drop(self, connection: C) -> None:
        """It is of no use any more."""
        connection.close()
        self.make_room()

    def forget(self) -> None:
        """Close what lies idle."""
        for connection in self.take_all_free():
            self.drop(connection)

    def close(self) -> None:
        """Close all, now and later."""
        self._closed = True
        self.forget()
