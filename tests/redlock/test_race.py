"""Fifty clients want one name, and the machine has little to give: all get it, because those who meet come apart."""

from __future__ import annotations

import pytest

from ..tier import sample
from .waiting import Crowd

SECONDS = 40.0
CLIENTS = 50


@pytest.mark.parametrize("seed", sample(range(1), range(2)))
@pytest.mark.parametrize("cost", [0.00002, 0.0003, 0.0006, 0.001])
def test_every_client_of_a_crowd_gets_its_turn_however_slow_the_machine(cost: float, seed: int) -> None:
    # At 0.6 ms a packet one round of all fifty takes longer than a server may: who then comes again at once keeps all from ever being heard.
    crowd = Crowd(seed, CLIENTS, cost=cost, hold=0.02)
    crowd.run(SECONDS)
    assert len(crowd.granted) == CLIENTS, f"{len(crowd.granted)} granted, {crowd.silences} times nothing was heard"
    # Each release is heard by all, and each of them asks five servers once: more than that is meeting half-way.
    assert crowd.machine.requests / 2 / CLIENTS < 6 * CLIENTS


@pytest.mark.parametrize("clients", [2, 4])
def test_a_few_clients_take_turns_without_a_pause_that_they_would_notice(clients: int) -> None:
    crowd = Crowd(1, clients, cost=0.00002, hold=0.02)
    crowd.run(SECONDS)
    assert len(crowd.granted) == clients
    # Between two turns there is nothing but a release, its hint, and an attempt or two.
    gaps = [after - before - 0.02 for before, after in zip(crowd.granted, crowd.granted[1:], strict=False)]
    assert max(gaps) < 0.02


def test_who_is_alone_after_a_silence_comes_at_once_when_it_hears_of_a_release() -> None:
    crowd = Crowd(1, 2, cost=0.00002, hold=9.0)
    crowd.run(2.0)
    quick = crowd.universe.delay
    # The servers are asked, and say nothing in time, for a while.
    crowd.universe.delay = lambda client, node, request: 1.0
    crowd.run(4.0)
    assert crowd.silences > 0
    crowd.universe.delay = quick
    crowd.run(SECONDS)
    first, second = crowd.granted
    assert second - first - 9.0 < 0.05
