"""Who stands in no line and is to be told of the next change of one: each once, and then asked for again."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

W = TypeVar("W", bound=Hashable)


class Watchers(Generic[W]):
    """By the line, whatever a system calls that. Safe from any thread: each change is one step of a dictionary."""

    def __init__(self) -> None:
        self.watched: dict[str | bytes, dict[W, None]] = {}
        """Who is to be told, by the line. To be looked at where a call would be too dear: empty while nobody watches."""

    def add(self, line: str | bytes, watcher: W) -> None:
        """Tell this one of the next change."""
        while True:
            there = self.watched.setdefault(line, {})
            there[watcher] = None
            # Told, or nobody's any more, between the two: then it is not in what was taken.
            if self.watched.get(line) is there:
                return

    def has(self, line: str | bytes, watcher: W) -> bool:
        """Whether it still waits to be told."""
        return watcher in self.watched.get(line, ())

    def take(self, line: str | bytes) -> list[W]:
        """Whom to tell of a change of this line."""
        return list(self.watched.pop(line, ()))

    def take_all(self) -> list[W]:
        """Whom to tell that anything may have changed."""
        return [watcher for line in list(self.watched) for watcher in self.take(line)]

    def discard(self, watcher: W) -> None:
        """Nobody is there to be told any more."""
        for line, there in list(self.watched.items()):
            there.pop(watcher, None)
            if not there:
                self.watched.pop(line, None)
