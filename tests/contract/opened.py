"""The worlds of one session, each opened once and only if a test needs it."""

from __future__ import annotations

import pytest

from .worlds import World, all_worlds


def chosen(config: pytest.Config) -> dict[str, type[World]]:
    """The worlds asked for with --backend, or all."""
    worlds = all_worlds()
    wanted = config.getoption("--backend")
    for name in wanted:
        if name not in worlds:
            raise pytest.UsageError(f"--backend {name}: the contract suite knows {', '.join(worlds)}")
    return {name: world for name, world in worlds.items() if not wanted or name in wanted}


class Opened:
    """Worlds that have been opened, each once a session."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._worlds: dict[str, World] = {}
        self._unavailable: dict[str, BaseException] = {}

    def get(self, name: str) -> World:
        if name in self._unavailable:
            raise self._unavailable[name]
        if name not in self._worlds:
            world = all_worlds()[name](self._factory.mktemp(name))
            try:
                world.open()
            except BaseException as problem:
                # Found missing once is found missing for the whole session.
                self._unavailable[name] = problem
                raise
            self._worlds[name] = world
        return self._worlds[name]

    def close(self) -> None:
        for world in self._worlds.values():
            world.close()
