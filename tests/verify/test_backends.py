"""The machine on every backend, under every fault that needs nothing from a server: nothing is broken, and nothing is left."""

from __future__ import annotations

import pytest

from lockline.lab.verify.machine import Machine, RunWish
from lockline.lab.verify.verdict import EXCLUSION, FENCE, HELD, RISING, UNIQUE

from ..contract.opened import Opened
from ..contract.worlds import all_worlds
from ..servers.process import wait_for
from ..tier import sample
from .conftest import TTL

pytestmark = [pytest.mark.server, pytest.mark.slow]

EVERY_TIME = ("local", "redlock-3")
"""No server, and several; one server is in test_command.py."""
IN_FULL = (
    "redis", "redis-sentinel", "redis-cluster", "redlock-5", "etcd", "zookeeper", "consul", "postgresql", "mysql", "zookeeper3", "etcd3",
)  # fmt: skip
NO_PROXY = ("local", "redis-sentinel", "redis-cluster")


@pytest.mark.parametrize("name", sample(EVERY_TIME, EVERY_TIME + IN_FULL))
@pytest.mark.usefixtures("patient_judge")
def test_nothing_is_broken(name: str, opened_worlds: Opened) -> None:
    """Takes some 20 s: what the killed holder has left there ends with its ttl, and only then is it certain that nothing stays."""
    assert name in all_worlds()
    world = opened_worlds.get(name)
    place = world.place()
    wish = RunWish(place, seconds=sample(5.0, 20.0), workers=sample(3, 6), seed=11, ttl=TTL, least=sample(5, 20))
    outcome = Machine(wish).run()
    told = [(finding.promise, finding.text) for finding in outcome.verdict.broken]
    assert not told, (told, outcome.notes)
    assert not outcome.notes
    for promise in (EXCLUSION, UNIQUE, RISING, FENCE):
        assert outcome.verdict.of(promise).state == HELD, promise
    assert bool(outcome.network) == (name in NO_PROXY)
    assert outcome.history.faults
    # Redlock's servers keep for people who look that somebody waited; of one that was killed, for its ttl.
    wait_for(lambda: world.debris(place) == [], 60, "nothing is left")
