"""The machine on every backend, under every fault that needs nothing from a server: nothing is broken, and nothing is left."""

from __future__ import annotations

import os

import pytest

from lockline.lab.verify.machine import Machine, RunWish
from lockline.lab.verify.verdict import EXCLUSION, FENCE, HELD, RISING, UNIQUE

from ..contract.opened import Opened
from ..contract.worlds import all_worlds
from ..servers.process import wait_for

pytestmark = [pytest.mark.server, pytest.mark.slow]

EVERY_TIME = ("local", "redis", "redlock-3")
"""No server, one, several: every way that the machine itself takes."""
IN_FULL = (
    "redis-sentinel", "redis-cluster", "redlock-5", "etcd", "zookeeper", "consul", "postgresql", "mysql", "zookeeper3", "etcd3",
)  # fmt: skip
NO_PROXY = ("local", "redis-sentinel", "redis-cluster")


@pytest.mark.parametrize("name", [*EVERY_TIME, *(IN_FULL if os.environ.get("LOCKLINE_FULL") else ())])
def test_nothing_is_broken(name: str, opened_worlds: Opened) -> None:
    assert name in all_worlds()
    world = opened_worlds.get(name)
    place = world.place()
    wish = RunWish(place, seconds=8.0, workers=6, seed=11, least=20)
    outcome = Machine(wish).run()
    told = [(finding.promise, finding.text) for finding in outcome.verdict.broken]
    assert not told, (told, outcome.notes)
    assert not outcome.notes
    for promise in (EXCLUSION, UNIQUE, RISING, FENCE):
        assert outcome.verdict.of(promise).state == HELD, promise
    assert bool(outcome.network) == (name in NO_PROXY)
    assert outcome.history.faults
    # Redlock's servers keep for people who look that somebody waited; of one that was killed, for its ttl.
    wait_for(lambda: world.debris(place) == [], 2 * wish.ttl, "nothing is left")
