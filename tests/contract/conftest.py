"""Every contract test runs on every world, blocking and in asyncio; `--backend NAME` picks one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lockline.core import keeper

from .opened import Opened, chosen
from .scene import Scene


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" not in metafunc.fixturenames:
        return
    only = [mark.args[0] for mark in metafunc.definition.iter_markers("flavour")]
    apart = metafunc.definition.get_closest_marker("processes") is not None
    params = [
        pytest.param((name, flavour), id=f"{name}-{flavour}", marks=world.marks)
        for name, world in chosen(metafunc.config).items()
        for flavour in world.flavours
        if (not only or flavour in only) and (world.spans_processes or not apart)
    ]
    metafunc.parametrize("world", params, indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest, opened_worlds: Opened) -> Iterator[Scene]:
    name, flavour = request.param
    scene = Scene(opened_worlds.get(name), flavour)
    yield scene
    scene.finish()


@pytest.fixture(autouse=True)
def _withdrawals_come_before_their_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a busy machine: what cannot be undone in a quarter of a second is left to the background, and gone a moment later.

    Where that is the story, a test makes the withdrawal fail.
    """
    monkeypatch.setattr(keeper, "WITHDRAWAL", 5.0)
