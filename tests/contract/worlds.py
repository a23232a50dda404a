"""The systems that the contract suite runs on, and how another one joins it.

A backend joins with one small file beside this one, named `world_<backend>.py`:

    import pytest
    from .worlds import World, joins

    @joins
    class RedisWorld(World):
        name = "redis"
        marks = (pytest.mark.server,)

        def open(self) -> None:                 # once a session, on first use: start the server here
            self.server = start_redis(self.folder)

        def place(self) -> str:                 # once a test: a URL whose lines no other test has seen
            return f"redis://127.0.0.1:{self.server.port}/?prefix={self.unique()}"

        def debris(self, target) -> list[str]:  # what is left there when nobody holds or waits
            return keys_under(target)

        def close(self) -> None:
            self.server.stop()

That is all: every test then runs on it, blocking and in asyncio. `pytest tests/contract --backend redis` runs it alone.
A server that is not installed: call `tests.servers.process.missing(...)` in `open` (skips at home, fails in CI).
What a system has, and what it has not, is said by the class attributes below, never asked of the system: `test_capabilities.py`
compares the two, and a test marked `needs("hands_over")` is not collected where the attribute is False, one marked
`lacks("hands_over")` only there.
"""

from __future__ import annotations

import importlib
import itertools
import os
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import pytest

from lockline.guarantees import Exclusion, Survives

STORES_OWN: Final = frozenset({
    "test_01_expiry", "test_03_no_answer", "test_04_renewal_never_creates", "test_05_release", "test_07_cut_short", "test_09_fork", "test_10_tokens",
    "test_12_no_debris", "test_14_every_wait_ends", "test_15_one_client", "test_capabilities", "test_hand_over", "test_hand_over_in_doubt", "test_handed_on",
    "test_idle_client", "test_inspect", "test_keep_for", "test_lead", "test_lock_delay", "test_names", "test_once", "test_once_per", "test_order",
    "test_processes", "test_unattended_claims",
})  # fmt: skip
"""The promises that each store keeps itself: order, tokens, exclusion, repeats, death, debris, names, values, notifications. `make test` runs them on
every store, but for those marked `core`. All others are kept by the core, and `make test` runs them on the stores of `BOTH`."""
BOTH: Final = frozenset({"memory", "local", "redis"})
"""The stores on which `make test` runs every contract test: on `memory:` in both flavours, and on Redis what the store decides."""


class World:
    """One backend as the contract tests see it."""

    name: ClassVar[str]
    marks: ClassVar[tuple[pytest.MarkDecorator, ...]] = ()
    flavours: ClassVar[tuple[str, ...]] = ("sync", "asyncio")

    spans_processes: ClassVar[bool] = True
    """Another process can take part by the same URL (then `place` returns text)."""
    notices_death: ClassVar[bool] = False
    """A killed process is noticed at once, not only when its ttl is over."""
    shortest_ttl: ClassVar[float] = 0.0
    """The ttl that the system rounds shorter ones up to; 0 where any ttl is kept as it is."""
    runtime_clock: ClassVar[bool] = False
    """Claims run out by `runtime.now()`, so that a test can turn the clock; elsewhere by the store's own."""
    wall_clock: ClassVar[bool] = False
    """Claims run out by the wall clock of the machine that the store runs on, which may be stepped."""
    sessions: ClassVar[bool] = False
    """Claims hang on a session or lease of their client, which ends if the client is silent for long."""
    shares_a_connection: ClassVar[bool] = False
    """In asyncio one connection carries the requests of several tasks at once."""
    most_files: ClassVar[int] = 8
    """How many files and connections a client may open when a thousand wait: a bound, whatever their number."""
    more_files: ClassVar[int] = 4
    """How many a client that has held and waited may still open when thirty wait."""

    # What the store offers. A store that loses one of these, or has one more, fails `test_capabilities.py`.
    exclusion: ClassVar[Exclusion]
    """`guarantees.exclusion`."""
    token_survives: ClassVar[frozenset[Survives]]
    """`guarantees.token_survives`."""
    has_lines: ClassVar[bool] = True
    """Claims that wait stand in the store, where anybody can see them, and hold in the order of arrival."""
    pushes: ClassVar[bool] = True
    """A waiter is notified of its turn; it does not poll."""
    watches: ClassVar[bool] = True
    """A client that has no claim in the queue is notified of changes as well."""
    notes_grants: ClassVar[Literal["at once", "by the renewal", "never"]] = "at once"
    """When the store knows since when a claim holds that waited; until then `granted_at` is its arrival."""
    hands_on: ClassVar[bool] = True
    """The store says which claim is directly ahead, so that a client hands a turn on to its own next claim by itself."""
    hands_over: ClassVar[bool] = True
    """`detach` and `attach`."""
    keeps_values: ClassVar[bool] = True
    """`once` and `once_per`."""
    keeps_for: ClassVar[bool] = True
    """`keep_for`."""
    delays_locks: ClassVar[bool] = True
    """`lock_delay`."""
    semaphores: ClassVar[bool] = True
    """`semaphore` and `pool`."""
    read_write: ClassVar[bool] = True
    """`rwlock`."""

    packaged_apart: ClassVar[bool] = False
    """It comes in a distribution of its own, of which README.md says nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count(1)

    def open(self) -> None:
        """Make ready, once a session and only if a test needs it: start servers here."""

    def close(self) -> None:
        """Undo `open`."""

    def unique(self) -> str:
        """A word that no other test of this run has used."""
        return f"t{os.getpid()}n{next(self._numbers)}"

    def place(self) -> Any:
        """Where one test connects to: a URL (or a client object) whose lines no other test has seen."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """What `connect` is given besides the place."""
        return {}

    def debris(self, place: Any) -> list[str]:
        """Keys, rows or nodes of this place that are left when nobody holds or waits, other than bounded ones with a ttl."""
        return []


class Place(World):
    """A place that is just a URL, for stories of one store's own that are told as those of the contract are."""

    name = "place"

    def __init__(self, url: str) -> None:
        self.url = url

    def place(self) -> str:
        return self.url


WORLDS: dict[str, type[World]] = {}


def joins(world: type[World]) -> type[World]:
    """Let the contract suite run on this world too."""
    WORLDS[world.name] = world
    return world


def all_worlds() -> dict[str, type[World]]:
    """Every world that has a file `world_*.py` in this folder, the reference first."""
    for file in sorted(Path(__file__).parent.glob("world_*.py")):
        importlib.import_module(f"{__package__}.{file.stem}")
    order = {"memory": 0, "local": 1}
    return dict(sorted(WORLDS.items(), key=lambda item: (order.get(item[0], 2), item[0])))
