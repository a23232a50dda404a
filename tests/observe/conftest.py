"""The stories of events run on the in-process, the embedded and a served backend, on the first of them blocking and in asyncio."""

from __future__ import annotations

import pytest

from ..contract.conftest import _a_store_on_a_busy_machine_has_the_time_to_answer, can, flavours, world
from ..contract.opened import chosen

__all__ = ["_a_store_on_a_busy_machine_has_the_time_to_answer", "world"]

WORLDS = ("memory", "local", "redis")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" not in metafunc.fixturenames:
        return
    only = [mark.args[0] for mark in metafunc.definition.iter_markers("flavour")]
    worlds = {name: kind for name, kind in chosen(metafunc.config).items() if name in WORLDS}
    if not worlds:
        # Without a word these stories would be none at all.
        pytest.fail(
            f"tests/observe has no story to run: --backend has to name one of {', '.join(WORLDS)}", pytrace=False
        )
    metafunc.parametrize(
        "world",
        [
            pytest.param((name, flavour), id=f"{name}-{flavour}", marks=kind.marks)
            for name, kind in worlds.items()
            if can(kind, metafunc.definition)
            for flavour in flavours(kind, only, metafunc.function.__name__, stores_own=False)
        ],
        indirect=True,
    )
