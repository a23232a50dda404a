"""What every lock of the laboratory looks like: small enough that the published algorithm is all there is to read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

Step = Callable[[str], None]
"""Called by a lock between two of its steps, by name: the schedule can stop the client right there."""
POLL = 0.05
"""Seconds between two tries of a lock that polls; the articles sleep for 0.1."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the lock lives."""

    addresses: tuple[tuple[str, int], ...]
    name: str
    ttl: float
    patience: float = 5.0
    """Seconds for which a client waits for one answer."""
    url: str = ""
    """The same for those who take a URL; `{hosts}` stands for the addresses."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What a client has in its hand while it holds: whatever the lock needs to let go again."""

    value: Any
    token: int | None = None
    lease: Any = None
    """What a fence can check; only locks with tokens have one."""


class PublishedLock:
    """One lock of the literature. A subclass has the algorithm, where it comes from, and what the literature says of it."""

    id: ClassVar[str]
    title: ClassVar[str]
    family: ClassVar[str] = "redis"
    """The servers that it needs."""
    source: ClassVar[str] = ""
    fenced: ClassVar[bool] = False
    expires: ClassVar[bool] = True
    """Whether a hold ends by time, or with its session, when its owner is gone."""
    knows: ClassVar[bool] = False
    """Whether the holder can tell, without asking, that its hold is over."""
    renews: ClassVar[bool] = False
    session: ClassVar[bool] = False
    """Whether the hold lives and dies with a connection that the server watches."""
    crash_at: ClassVar[str | None] = None
    """The checkpoint at which a crash hurts most."""
    release_at: ClassVar[str | None] = None
    """The checkpoint inside the release."""
    clock_at: ClassVar[str | None] = None
    """The checkpoint inside the acquire where a step of the client's clock hurts."""
    expected: ClassVar[Mapping[str, str]] = {}
    """Failure by failure, what the literature says."""
    because: ClassVar[Mapping[str, str]] = {}
    """Failure by failure, what is particular about this lock."""

    def __init__(self, place: Place, step: Step) -> None:
        self.place = place
        self.step = step

    def acquire(self, until: float) -> Hold | None:
        """Try until then, at least once."""
        while True:
            hold = self.try_acquire()
            if hold is not None or time.monotonic() + POLL > until:
                return hold
            time.sleep(POLL)

    def try_acquire(self) -> Hold | None:
        """One attempt."""
        raise NotImplementedError

    def release(self, hold: Hold | None) -> None:
        """Let go, as published; `hold` is None where somebody lets go who never held."""
        raise NotImplementedError

    def holds(self, hold: Hold) -> bool:
        """What the holder believes. Most locks give it nothing to doubt with."""
        return True

    def close(self) -> None:
        """Hang up."""
