"""What a run does, as values: the names, the settings that travel to the workers, and the dice that choose what each does next."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Literal

Style = Literal["short", "deadline", "kept"]

LIMIT: Final = 3
"""Permits of the semaphores."""
DEADLINE_TTL: Final = 0.6
"""How long a lease lasts that nobody renews and whose holder stays to the last instant that it may trust."""


UNRENEWED: Final = "deadline"
"""The last word of the name whose leases nobody renews."""


def left_to_run_out(name: str) -> bool:
    """Whether a lease of this name is lost by the plan, and not by a mishap."""
    return name.endswith(f"/{UNRENEWED}")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one run, all under one prefix that nobody else has."""

    prefix: str
    shares: bool = True
    """Whether the store has read-write locks and semaphores."""

    @property
    def locks(self) -> list[str]:
        """Hot ones, and ones that are kept or left to their deadline."""
        return [f"{self.prefix}{word}" for word in ("lock-1", "lock-2", "lock-3", "kept", UNRENEWED)]

    @property
    def read_write(self) -> list[str]:
        """Read-write locks."""
        return [f"{self.prefix}rw-1"] if self.shares else []

    @property
    def semaphores(self) -> list[str]:
        """Semaphores."""
        return [f"{self.prefix}permits-1"] if self.shares else []

    @property
    def written(self) -> list[str]:
        """Those whose holders write."""
        return [*self.locks, *self.read_write]

    @property
    def everything(self) -> list[str]:
        """All of them."""
        return [*self.locks, *self.read_write, *self.semaphores]


@dataclass(frozen=True, slots=True)
class Settings:
    """What one worker is told. The URL may hold a password, so all this travels through a pipe and never on a command line."""

    url: str
    number: int
    folder: str
    prefix: str
    seed: int
    ends: float
    """When to begin nothing new, on the machine's clock."""
    flavour: Literal["sync", "asyncio"] = "sync"
    parties: int = 2
    """Threads or tasks of this worker, that share one client."""
    ttl: float = 2.0
    timeout: float = 6.0
    """How long an acquire waits."""
    pace: float = 0.02
    """Seconds between two operations of one party, on average: bounds the load."""
    shares: bool = True
    subject: str = ""
    """Another lock than Lockline's, as `module:function`: called with URL, flavour and owner, it gives a client."""
    mutation: str = ""
    """What is wrong with that other lock."""

    def text(self) -> str:
        """As one line."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Settings:
        """From that line."""
        return cls(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Step:
    """What one party does next."""

    name: str
    kind: Literal["lock", "read", "write", "permit"]
    style: Style
    hold: float
    pause: float
    lets_go: bool = True
    """False for one that leaves its lease to run out."""


class Dice:
    """The next step of one party: the same seed gives the same steps."""

    def __init__(self, settings: Settings, party: int) -> None:
        self._random = random.Random(f"{settings.seed}/{settings.number}/{party}")
        self._names = Names(settings.prefix, settings.shares)
        self._settings = settings
        # Some parties stay long, on names of their own: all others would only stand in line there.
        self._patient = party == settings.parties - 1 and settings.number % 4 < 3

    def step(self) -> Step:
        """The next one."""
        chance = self._random
        names, ttl = self._names, self._settings.ttl
        pause = chance.uniform(0.0, 2 * self._settings.pace)
        roll = chance.random()
        if self._patient and roll < 0.55:
            return Step(names.locks[4], "lock", "deadline", 3 * DEADLINE_TTL, pause, chance.random() < 0.5)
        if self._patient and roll < 0.8:
            return Step(names.locks[3], "lock", "kept", chance.uniform(0.5, 1.3) * ttl, pause)
        hold = chance.uniform(0.0, 0.01)
        roll = chance.random()
        if self._settings.shares and roll < 0.35:
            if roll < 0.12:
                # Longer than the others, or there would hardly ever be nothing left.
                return Step(self._one(names.semaphores), "permit", "short", 12 * hold, pause)
            kind: Literal["read", "write"] = "write" if chance.random() < 0.4 else "read"
            return Step(self._one(names.read_write), kind, "short", hold, pause)
        return Step(self._one(names.locks[:3]), "lock", "short", hold, pause)

    def _one(self, names: Sequence[str]) -> str:
        return self._random.choice(names)
