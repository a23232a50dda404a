"""Promise 9: after fork the child holds nothing and uses no inherited socket; the parent notices nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .scene import Scene

ROOT = Path(__file__).parent.parent.parent


def fork_story(world: Scene, story: str, ttl: float) -> dict[str, Any]:
    """What parent and child saw, in a process of their own: forking the test runner itself would be a story of its own."""
    done = subprocess.run(
        [
            sys.executable, "-W", "ignore::DeprecationWarning", "-m", "tests.contract.fork_stories",
            world.flavour, str(world.place), json.dumps(world.world.options()), story, str(ttl),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def _by_url(world: Scene) -> None:
    if not isinstance(world.place, str):
        pytest.skip("a child process connects by URL")


def test_the_child_holds_nothing_of_what_the_parent_holds(world: Scene) -> None:
    seen = fork_story(world, "child_holds_nothing", 30.0)
    assert seen["child"]["valid"] is False
    assert seen["child"]["release"] == "NotHeld"
    assert seen["parent"]["valid"] is True
    assert seen["parent"]["held in the store"] is True
    assert seen["parent"]["release"] == "ok"


def test_the_child_can_use_the_client_at_once(world: Scene) -> None:
    seen = fork_story(world, "child_acquires", world.kept_ttl())
    assert seen["child"]["seconds"] < 2 * world.world.patience
    assert seen["child"]["valid after its ttl"] is True
    assert seen["child"]["release"] == "ok"
    assert seen["parent"]["release"] == "ok"


@pytest.mark.processes
def test_parent_and_child_exclude_each_other(world: Scene) -> None:
    seen = fork_story(world, "exclude_each_other", 30.0)
    assert seen["child"]["try while the parent holds"] is None
    assert seen["child"]["token"] > seen["parent"]["token"]


def test_a_fork_while_others_wait_and_renew_leaves_a_child_that_works(world: Scene) -> None:
    seen = fork_story(world, "busy_parent", world.kept_ttl())
    assert seen["child"]["tokens"] == sorted(seen["child"]["tokens"])
    assert len(seen["child"]["tokens"]) == 5
    assert seen["parent"]["waiter got it"] is True


def test_a_child_that_exits_takes_nothing_away_from_the_parent(world: Scene) -> None:
    seen = fork_story(world, "child_exits_cleanly", world.kept_ttl())
    assert seen["parent"]["valid after its ttl"] is True
    assert seen["parent"]["another name works"] is True
    assert seen["parent"]["release"] == "ok"
