"""The stories of events run on the in-process, the embedded and a served backend, blocking and in asyncio."""

from __future__ import annotations

import pytest

from ..contract.conftest import _a_store_on_a_busy_machine_has_the_time_to_answer, world
from ..contract.opened import chosen

__all__ = ["_a_store_on_a_busy_machine_has_the_time_to_answer", "world"]

WORLDS = ("memory", "local", "redis")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "hands_on: the story needs a store that says who stands directly ahead")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" not in metafunc.fixturenames:
        return
    only = [mark.args[0] for mark in metafunc.definition.iter_markers("flavour")]
    hands_on = metafunc.definition.get_closest_marker("hands_on") is not None
    worlds = {name: kind for name, kind in chosen(metafunc.config).items() if name in WORLDS}
    metafunc.parametrize(
        "world",
        [
            pytest.param((name, flavour), id=f"{name}-{flavour}", marks=kind.marks)
            for name, kind in worlds.items()
            for flavour in kind.flavours
            if (not only or flavour in only) and (kind.hands_on or not hands_on)
        ],
        indirect=True,
    )
