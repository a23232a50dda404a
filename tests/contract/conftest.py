"""Every contract test runs on every world, blocking and in asyncio; `--backend NAME` picks one."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockline.core import engine, keeper, waiting

from ..tier import FULL
from .opened import Opened, chosen
from .scene import Scene
from .worlds import BOTH, STORES_OWN, World, all_worlds

A_CALL = 5.0
"""Seconds that a call has at least, whatever timeout it was given."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "core: what the core decides for all stores, in a file of what each store decides"
    )


def flavours(world: type[World], only: list[str], story: str, *, stores_own: bool = True) -> list[str]:
    """The flavours that a story runs in on this store.

    Both under `make test-full`, on `memory:`, and on Redis where the store decides. Elsewhere one, chosen by a hash of the story and the
    store, so that each store meets both flavours and each flavour meets every store.
    """
    possible = [flavour for flavour in world.flavours if not only or flavour in only]
    if FULL or world.name == "memory" or (world.name == "redis" and stores_own) or len(possible) < 2:
        return possible
    return [possible[zlib.crc32(f"{story} {world.name}".encode()) % len(possible)]]


def can(world: type[World], story: pytest.Function) -> bool:
    """Whether this store has what the story needs; by the table of the worlds, whatever the store says of itself."""
    return (
        all(getattr(world, what) for mark in story.iter_markers("needs") for what in mark.args)
        and not any(getattr(world, what) for mark in story.iter_markers("lacks") for what in mark.args)
        and (world.spans_processes or story.get_closest_marker("processes") is None)
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" not in metafunc.fixturenames:
        return
    only = [mark.args[0] for mark in metafunc.definition.iter_markers("flavour")]
    module, story = metafunc.module.__name__.rpartition(".")[2], metafunc.definition
    own = module in STORES_OWN and story.get_closest_marker("core") is None
    params = [
        pytest.param((name, flavour), id=f"{name}-{flavour}", marks=world.marks)
        for name, world in chosen(metafunc.config).items()
        if can(world, story) and (FULL or own or name in BOTH)
        for flavour in flavours(world, only, metafunc.function.__name__, stores_own=own)
    ]
    metafunc.parametrize("world", params, indirect=True)


def fits(item: pytest.Item) -> bool:
    """Whether the world of this item can show the story: one parameter of a story may need more than another."""
    chosen_for_it = item.callspec.params["world"]  # type: ignore[attr-defined]
    if not isinstance(chosen_for_it, tuple):  # there was none to choose from
        return False
    name, flavour = chosen_for_it
    only = [mark.args[0] for mark in item.iter_markers("flavour")]
    return (not only or flavour in only) and can(all_worlds()[name], item)  # type: ignore[arg-type]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A story that none of the chosen worlds has is left out, rather than skipped a thousand times.

    So is one that has no world at all, unless the reference is among those chosen: it would be the same on each.
    """
    elsewhere = "memory" not in chosen(config)
    here = str(Path(__file__).parent) + os.sep
    homeless = [
        item
        for item in items
        if str(item.path).startswith(here)
        and (not fits(item) if "world" in getattr(item, "fixturenames", ()) else elsewhere)
    ]
    if homeless:
        config.hook.pytest_deselected(items=homeless)
        left_out = set(map(id, homeless))
        items[:] = [item for item in items if id(item) not in left_out]


@pytest.fixture
def world(request: pytest.FixtureRequest, opened_worlds: Opened) -> Iterator[Scene]:
    name, flavour = request.param
    with Scene(opened_worlds.get(name), flavour) as scene:
        yield scene


@pytest.fixture(autouse=True)
def _a_store_on_a_busy_machine_has_the_time_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be undone in a quarter of a second is left to the background, and gone a moment later; what is not entered a fifth of
    a second after a short timeout is a silent store, and who was in the way is not told where the look for it takes an eighth.

    Where that is the story, a test makes the call fail or hang, and says for how long it is asked.
    """
    monkeypatch.setattr(keeper, "WITHDRAWAL", 5.0)
    monkeypatch.setattr(engine, "GRACE", A_CALL)
    monkeypatch.setattr(waiting, "LAST_LOOK", 5.0)
