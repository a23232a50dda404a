"""Options that every folder of tests understands."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from lockline.lab.servers.process import NotInstalled

from .contract.opened import Opened
from .servers.process import missing
from .tier import FULL, SEED


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backend",
        action="append",
        default=[],
        metavar="NAME",
        help="run the contract and the property tests on this backend only; may be given more than once",
    )


def pytest_configure(config: pytest.Config) -> None:
    # How fast it draws its examples says something about the machine, and nothing about us.
    settings.register_profile(
        "lockline",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        # What a change is judged by is the same twice; new examples are looked for at home.
        derandomize=bool(os.environ.get("CI")),
    )
    settings.load_profile("lockline")
    config.addinivalue_line("markers", "flavour(name): the story can only be told in this flavour, sync or asyncio")
    config.addinivalue_line("markers", "processes: the story needs a world that spans processes")
    config.addinivalue_line(
        "markers", "needs(what, ...): the story needs a world that has this; see tests/contract/worlds.py"
    )
    config.addinivalue_line("markers", "lacks(what): the story is that of a world that does not have this")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is for `make test-full` alone out of every other run."""
    if FULL:
        return
    left_out = [item for item in items if item.get_closest_marker("full")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_collection_finish() -> None:
    # Thousands of tests collect the garbage: they need not look through all modules and all other tests each time.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def opened_worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    opened = Opened(tmp_path_factory)
    yield opened
    opened.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    random.seed(f"{SEED} {item.nodeid}")
    yield from _skips_where_a_server_is_missing()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    yield from _skips_where_a_server_is_missing()


def _skips_where_a_server_is_missing() -> Iterator[None]:
    try:
        yield
    except NotInstalled as problem:
        missing(str(problem))
