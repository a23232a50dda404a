"""Every contract test runs on every world, blocking and in asyncio; `--backend NAME` picks one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .scene import Scene
from .worlds import World, all_worlds


def chosen(config: pytest.Config) -> dict[str, type[World]]:
    """The worlds asked for with --backend, or all."""
    worlds = all_worlds()
    wanted = config.getoption("--backend")
    for name in wanted:
        if name not in worlds:
            raise pytest.UsageError(f"--backend {name}: the contract suite knows {', '.join(worlds)}")
    return {name: world for name, world in worlds.items() if not wanted or name in wanted}


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


@pytest.fixture(scope="session")
def opened_worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    opened = Opened(tmp_path_factory)
    yield opened
    opened.close()


@pytest.fixture
def world(request: pytest.FixtureRequest, opened_worlds: Opened) -> Iterator[Scene]:
    name, flavour = request.param
    scene = Scene(opened_worlds.get(name), flavour)
    yield scene
    scene.finish()
