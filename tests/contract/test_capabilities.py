"""What a store has is written down in its world: the store itself must say the same, or a lost feature would only lose its tests."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from lockline import ConfigError, Guarantees
from lockline.core.backend import EndingWithClient, HandingOver, Keeping, Lasting, Watching

from .scene import A_MINUTE, Scene
from .worlds import all_worlds

README: Final = (Path(__file__).parents[2] / "README.md").read_text()
EXCLUDES: Final = {
    "threads and tasks of one process": "process",
    "processes of one machine": "machine",
    "clients of one": "server",
    "clients of a majority": "majority",
    "clients of a ZooKeeper": "consensus",
    "clients of an etcd": "consensus",
    "clients of a Consul": "consensus",
}
"""How README.md says what `guarantees.exclusion` is."""
ORDER: Final = {"arrival": True, "none": False}
WAKE_UP: Final = {"pushed": True, "hinted": True, "by looking again": False}


def promised(world: Scene) -> Guarantees:
    """What the client says once it has reached its store."""
    alice = world.party()
    alice.lock("x").acquire().release()
    return alice.client.guarantees  # type: ignore[no-any-return]


def test_the_guarantees_are_those_of_the_table(world: Scene) -> None:
    table, said = world.world, promised(world)
    assert (said.exclusion, said.fifo, said.push) == (table.exclusion, table.has_lines, table.pushes)
    assert said.token_survives == table.token_survives
    assert (said.exclusion == "process") == (not table.spans_processes)


def test_the_optional_calls_of_the_store_are_those_of_the_table(world: Scene) -> None:
    table, backend = world.world, world.party().client.real._engine.backend
    assert isinstance(backend, HandingOver) == table.hands_over
    assert isinstance(backend, Keeping) == table.keeps_values
    assert isinstance(backend, Lasting) == table.keeps_for
    assert isinstance(backend, EndingWithClient) == (not table.delays_locks)
    # Whether the server can be heard at all is known once it was reached.
    assert (isinstance(backend, Watching) and promised(world).push) == table.watches


def test_a_waiter_behind_one_of_its_own_client_is_told_so_by_the_stores_of_the_table(world: Scene) -> None:
    alice = world.party()
    lease = alice.lock("x").acquire()
    (waits,) = world.queue_up("x", world.sibling(alice).lock("x").acquire.start)
    books = alice.client.real._engine._keeper.books
    known: Callable[[], bool] = lambda: any(live.behind == lease.id for live in list(books.values()))  # noqa: E731
    if world.world.hands_on:
        world.wait_for(known, A_MINUTE, "the place directly behind")
    lease.release()
    waits.result().release()
    assert known() is False


OFFERS: Final[dict[str, Callable[[Any], Any]]] = {
    "semaphores": lambda party: party.semaphore("x", 2).acquire().release(),
    "read_write": lambda party: party.read("x").acquire().release(),
    "keeps_for": lambda party: party.lock("x", keep_for=1),
    "delays_locks": lambda party: party.lock("x", lock_delay=1),
    "has_lines": lambda party: party.lock("x", max_waiting=1),
    "keeps_values": lambda party: party.client.real.once_per("1d"),
}


@pytest.mark.parametrize("what", OFFERS)
def test_what_the_table_does_not_have_is_refused_and_the_rest_is_not(world: Scene, what: str) -> None:
    alice = world.party()
    if getattr(world.world, what):
        OFFERS[what](alice)
    else:
        with pytest.raises(ConfigError):
            OFFERS[what](alice)


def rows() -> dict[str, list[str]]:
    """The table of README.md: the other columns by the scheme of the URL."""
    found: dict[str, list[str]] = {}
    table = README.partition("## What each backend guarantees")[2].partition("\n## ")[0]
    for line in filter(lambda line: line.startswith("|"), table.splitlines()):
        first, *others = (cell.strip() for cell in line.strip("|").split("|"))
        for scheme in re.findall(r"`([\w+]+):", first):
            found[scheme] = others
    return found


@pytest.mark.lacks("packaged_apart")
def test_the_readme_says_what_the_client_says(world: Scene) -> None:
    said = promised(world)
    apart, order, wake_up, survives, _ = rows()[world.place.partition(":")[0]]
    assert [word for phrase, word in EXCLUDES.items() if apart.startswith(phrase)] == [said.exclusion]
    assert ORDER[order] is said.fifo
    # A footnote there: through a pooler nothing can be pushed.
    assert WAKE_UP[wake_up.rstrip("⁰¹²³⁴⁵")] is said.push or world.world.name == "postgresql-pgbouncer"
    words = survives.removesuffix(" of a minority").split(", ")
    assert {word.rstrip("⁰¹²³⁴⁵") for word in words} == said.token_survives


def test_the_readme_has_a_row_for_each_store() -> None:
    assert set(rows()) == {
        "memory", "local", "redis", "redis+sentinel", "redis+cluster", "redlock", "zk", "postgresql", "mysql", "etcd", "consul",
    }  # fmt: skip


def test_a_name_in_a_mark_is_one_of_the_table() -> None:
    used = {
        name
        for file in Path(__file__).parent.parent.glob("*/test_*.py")
        for marked in re.findall(r"mark\.(?:needs|lacks)\(([^)]*)\)", file.read_text())
        for name in re.findall(r'"(\w+)"', marked)
    }
    assert used
    for world in all_worlds().values():
        assert all(isinstance(getattr(world, name), bool) for name in used)
