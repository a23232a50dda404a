"""Promise 9: after fork the child holds nothing and uses no inherited socket; the parent notices nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .nursery import fork_elsewhere
from .parties import STUCK
from .scene import Scene


def fork_story(world: Scene, story: str) -> dict[str, Any]:
    """What parent and child saw, in a process of their own: forking the test runner itself would be a story of its own."""
    _, line = fork_elsewhere(world.flavour, str(world.place), world.world.options(), story)
    with line:
        line.settimeout(STUCK)
        with line.makefile() as told:
            seen: dict[str, Any] = json.loads(told.read() or '{"error": "the process ended"}')
    assert "error" not in seen, seen["error"]
    return seen


def test_the_child_holds_nothing_of_what_the_parent_holds(world: Scene) -> None:
    seen = fork_story(world, "child_holds_nothing")
    assert seen["child"]["valid"] is False
    assert seen["child"]["release"] == "NotHeld"
    assert seen["parent"]["valid"] is True
    assert seen["parent"]["held in the store"] is True
    assert seen["parent"]["release"] == "ok"


def test_the_child_can_use_the_client(world: Scene) -> None:
    seen = fork_story(world, "child_acquires")
    assert seen["child"]["renewed"] is True
    assert seen["child"]["release"] == "ok"
    assert seen["parent"]["release"] == "ok"


@pytest.mark.processes
def test_parent_and_child_exclude_each_other(world: Scene) -> None:
    seen = fork_story(world, "exclude_each_other")
    assert seen["child"]["try while the parent holds"] is None
    assert seen["child"]["token"] > seen["parent"]["token"]


def test_a_fork_while_others_wait_and_renew_leaves_a_child_that_works(world: Scene) -> None:
    seen = fork_story(world, "busy_parent")
    assert seen["child"]["tokens"] == sorted(seen["child"]["tokens"])
    assert len(seen["child"]["tokens"]) == 5
    assert seen["parent"]["waiter got it"] is True


def test_a_child_that_exits_takes_nothing_away_from_the_parent(world: Scene) -> None:
    seen = fork_story(world, "child_exits_cleanly")
    assert seen["parent"]["renewed"] is True
    assert seen["parent"]["another name works"] is True
    assert seen["parent"]["release"] == "ok"
