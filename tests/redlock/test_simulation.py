"""The protocol on a virtual clock and network: every history repeatable by its seed."""

from __future__ import annotations

import pytest

from lockline.backends.redlock.claims import Attempt
from lockline.backends.redlock.protocol import Protocol

from ..tier import sample
from .simulated import SimulatedFanout
from .simulation import Resource, Story


@pytest.mark.parametrize("seed", sample(range(1), range(4)))
@pytest.mark.parametrize("nodes", sample([3, 5], [3, 4, 5]))
def test_random_faults_never_give_a_token_twice_or_out_of_order(seed: int, nodes: int) -> None:
    resource = Resource()
    story = Story(seed, nodes=nodes, clients=5, resource=resource)
    story.universe.repeat = 0.05
    story.run(sample(30, 100), faults_every=0.7)
    assert story.judge.grants > 50
    assert story.judge.wrong == []
    assert story.judge.overlaps == 0
    assert resource.lost_updates == 0


@pytest.mark.parametrize("seed", sample([1], range(6)))
def test_stepped_clocks_may_make_leases_overlap_but_never_tokens_wrong(seed: int) -> None:
    resource = Resource()
    story = Story(seed, nodes=3, clients=5, resource=resource)
    story.run(sample(40, 100), faults_every=0.7, step_clocks=True)
    assert story.judge.grants > 50
    assert story.judge.wrong == []
    assert resource.lost_updates == 0


def test_stepped_clocks_do_make_leases_overlap_somewhere() -> None:
    # Otherwise the test above would not have stepped them where it hurts.
    assert any(
        Story(seed, nodes=3, clients=5).run(sample(30, 60), faults_every=0.3, step_clocks=True).judge.overlaps
        for seed in range(6)
    )


def test_the_same_seed_tells_the_same_story() -> None:
    first, second = (Story(7, clients=4).run(sample(10, 20), faults_every=0.3) for _ in range(2))
    assert first.judge.grants == second.judge.grants
    assert first.outcomes == second.outcomes


def test_nearly_every_grant_takes_one_round_trip_without_contention() -> None:
    story = Story(3, clients=1, names=20, wall=lambda: 0).run(60)
    assert story.judge.grants > 500
    assert story.judge.one_trip / story.judge.grants > 0.99


def test_a_hold_that_ends_soon_does_not_take_the_time_of_those_renewed_with_it() -> None:
    """Servers that take longer than a short lease would wait for them, but not longer than the others in its batch would."""
    story = Story(1, nodes=3, clients=0)
    universe = story.universe
    protocol = Protocol(SimulatedFanout(universe, "ann"))
    verdicts: list[object] = []

    async def play() -> None:
        holds = [Attempt(name, f"ann-{name}.1", ttl, "") for name, ttl in (("short", 0.1), ("long", 1.0))]
        for hold in holds:
            assert await protocol.acquire(hold, universe.now + 1)
        story.slow = dict.fromkeys(range(3), 0.015)
        verdicts.extend(await protocol.extend([(hold, hold.ttl) for hold in holds], universe.now + 1))

    universe.spawn(play())
    universe.run(1)
    assert verdicts == [True, True]


def test_servers_that_gave_unequal_numbers_are_lifted_to_one_of_them() -> None:
    """Each server has another counter, above every hint: no two give the same number, and one attempt gets the lock all the same."""
    story = Story(1, nodes=3, clients=0)
    universe = story.universe
    for number, node in enumerate(universe.nodes):
        node.memory.counters["x"] = 2**52 + 10 * number
    protocol, attempt = Protocol(SimulatedFanout(universe, "ann")), Attempt("x", "ann-x.1", 1.0, "")
    granted: list[bool] = []

    async def play() -> None:
        granted.append(await protocol.acquire(attempt, universe.now + 1))

    universe.spawn(play())
    universe.run(1)
    assert granted == [True]
    assert attempt.token == 2**52 + 11
