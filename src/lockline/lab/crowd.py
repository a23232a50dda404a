"""Clients by the dozen in one process: each takes its turns with a lock object of its own, and tells of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .trace import Kind, TraceEvent

if TYPE_CHECKING:
    from .actor import Part

READY = "ready"
"""The checkpoint of those who are to begin together: each has its connection and has held once."""


@dataclass(frozen=True, slots=True)
class CrowdTask:
    """What a crowd is asked to do."""

    count: int
    hold: float
    seconds: float
    """When whoever still waits goes away."""
    rounds: int = 1_000_000
    lane: str = ""
    """One for all of them; or each has its own."""
    together: bool = False
    """Whether they begin when the schedule says so."""


class Member:
    """One of them."""

    def __init__(self, part: Part, lane: str, tell: Callable[[TraceEvent], None]) -> None:
        self.waits: list[float] = []
        """What each grant was waited for."""
        self._asked: float | None = None
        self._lock = part.make(part.place, lambda name: None)
        self._lane = lane
        self._tell = tell

    def warm_up(self) -> None:
        with suppress(Exception):  # then it begins cold
            hold = self._lock.acquire(time.monotonic() + 10)
            if hold is not None:
                self._lock.release(hold)

    def take_turns(self, turns: CrowdTask, until: float) -> None:
        while len(self.waits) < turns.rounds and time.monotonic() < until:
            if self._asked is None:
                self._asked = time.monotonic()
                self._say("asked")
            hold = None
            with suppress(Exception):  # no answer: it asks again, and has waited since it first asked
                hold = self._lock.acquire(until)
            if hold is None:
                continue
            self.waits.append(time.monotonic() - self._asked)
            self._asked = None
            self._say("granted", hold.token)
            time.sleep(turns.hold)
            self._say("letting go", hold.token)
            with suppress(Exception):
                self._lock.release(hold)

    def told(self) -> list[float]:
        """What each grant was waited for; below zero what is waited for in vain."""
        asked = self._asked
        return [*self.waits, *([] if asked is None else [asked - time.monotonic()])]

    def _say(self, kind: Kind, token: int | None = None) -> None:
        self._tell(TraceEvent(time.monotonic(), self._lane, kind, token=token))


class Crowd:
    """All of them."""

    def __init__(self, part: Part, turns: CrowdTask, tell: Callable[[TraceEvent], None]) -> None:
        self._turns = turns
        alone = turns.count == 1
        self.members = [
            Member(part, turns.lane or (part.label if alone else f"{part.label} {number}"), tell)
            for number in range(1, turns.count + 1)
        ]
        self._threads: list[threading.Thread] = []

    def warm_up(self) -> None:
        """Everybody has its connection."""
        for member in self.members:
            member.warm_up()

    def begin(self) -> None:
        """Everybody asks."""
        until = time.monotonic() + self._turns.seconds
        self._threads = [
            threading.Thread(target=member.take_turns, args=(self._turns, until), daemon=True)
            for member in self.members
        ]
        for thread in self._threads:
            thread.start()

    @property
    def over(self) -> bool:
        """Whether everybody has gone home."""
        return not any(thread.is_alive() for thread in self._threads)

    def told(self) -> list[list[float]]:
        """What each of them waited for."""
        return [member.told() for member in self.members]
