"""Every contract test runs on every world, blocking and in asyncio; `--backend NAME` picks one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockline.core import engine, keeper, waiting

from .opened import Opened, chosen
from .scene import Scene
from .worlds import STORES_OWN

A_CALL = 5.0
"""Seconds that a call has at least, whatever timeout it was given."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" not in metafunc.fixturenames:
        return
    only = [mark.args[0] for mark in metafunc.definition.iter_markers("flavour")]
    apart = metafunc.definition.get_closest_marker("processes") is not None
    whole = bool(os.environ.get("LOCKLINE_FULL")) or metafunc.module.__name__.rpartition(".")[2] in STORES_OWN
    params = [
        pytest.param((name, flavour), id=f"{name}-{flavour}", marks=world.marks)
        for name, world in chosen(metafunc.config).items()
        for flavour in world.flavours
        if (not only or flavour in only) and (world.spans_processes or not apart) and (whole or not world.shown_by)
    ]
    metafunc.parametrize("world", params, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A story that none of the chosen worlds has is left out, rather than skipped a thousand times.

    So is one that has no world at all, unless the reference is among those chosen: it would be the same on each.
    """
    elsewhere = "memory" not in chosen(config)
    homeless = [
        item
        for item in items
        if (item.nodeid.endswith("[NOTSET]") if "world" in getattr(item, "fixturenames", ()) else elsewhere)
        and Path(__file__).parent in item.path.parents
    ]
    if homeless:
        config.hook.pytest_deselected(items=homeless)
        items[:] = [item for item in items if item not in set(homeless)]


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
