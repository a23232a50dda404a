"""One request at a time for each resource, in order of arrival, in threads that an exception may strike anywhere."""

from __future__ import annotations

import time
import weakref
from _thread import allocate_lock
from collections import deque
from typing import Final

from ...runtime.section import Section

NET: Final = 0.05
"""The longest sleep without a look round: one who was struck wakes nobody."""


class PlaceInLine:
    """One request's place in its line, for as long as somebody has it."""

    __slots__ = ("__weakref__", "woken")

    def __init__(self) -> None:
        self.woken = allocate_lock()
        self.woken.acquire()


class Turns:
    """The lines before the resources.

    A place is the life of a `PlaceInLine`, which the line knows weakly: whoever is struck between any two instructions loses it with
    his frame, and the next one is first. A lock that is taken here and given back there would stay taken.
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[weakref.ref[PlaceInLine]]] = {}
        self._alone = Section()

    def line_up(self, resource: str) -> PlaceInLine:
        """A place at the end of the line."""
        turn = PlaceInLine()
        self._alone(self._append, resource, weakref.ref(turn))
        return turn

    def wait(self, resource: str, turn: PlaceInLine, until: float) -> bool:
        """Wait until it is the first; False if it is not by then."""
        while self._first(resource) is not turn:
            left = until - time.monotonic()
            if left <= 0:
                return False
            turn.woken.acquire(True, min(left, NET))
        return True

    def leave(self, resource: str, turn: PlaceInLine) -> None:
        """Give the place up, and wake the next."""
        self._alone(self._remove, resource, weakref.ref(turn))
        first = self._first(resource)
        if first is not None:
            try:
                first.woken.release()
            except RuntimeError:
                pass  # it has been woken already

    def _first(self, resource: str) -> PlaceInLine | None:
        for place in tuple(self._lines.get(resource, ())):
            turn = place()
            if turn is not None:
                return turn
        return None

    def _append(self, resource: str, place: weakref.ref[PlaceInLine]) -> None:
        self._lines.setdefault(resource, deque()).append(place)

    def _remove(self, resource: str, gone: weakref.ref[PlaceInLine]) -> None:
        line = deque(place for place in self._lines.get(resource, ()) if place is not gone and place() is not None)
        if line:
            self._lines[resource] = line
        else:
            self._lines.pop(resource, None)
