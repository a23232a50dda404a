"""Numbers that differ between the nodes: a grant under a number that a majority does not have is lost at its first renewal."""

from __future__ import annotations

import pytest

from lockline.backends.redlock import rules
from lockline.backends.redlock.claims import Attempt
from lockline.backends.redlock.commands import NodeRequest
from lockline.backends.redlock.protocol import Protocol

from .simulated import SimulatedFanout, Universe

AHEAD = 1
"""The node that was restarted: its numbers begin far above the clock."""
FAR_ABOVE = 1 << 50
TTL, GRANTS = 1.0, 20


def first_renewals(delays: tuple[float, ...]) -> list[bool]:
    """Whether each of some fresh leases was alive at its first renewal; to each node and back takes twice its delay."""
    universe = Universe(1, len(delays))
    universe.set_up(TTL)

    def delay(client: str, node: int, request: NodeRequest) -> float:
        return delays[node]

    universe.delay = delay
    port = SimulatedFanout(universe, "ann", node_timeout=0.5)
    alive: list[bool] = []

    async def play() -> None:
        for number in range(GRANTS):
            universe.nodes[AHEAD].memory.counters[""] = FAR_ABOVE + number
            attempt = Attempt(f"n{number}", rules.attempt_id(f"ann-{number}", 1), TTL, "")
            protocol = Protocol(port)
            assert await protocol.acquire(attempt, universe.now + TTL)
            (answer,) = await protocol.extend([(attempt, TTL)], universe.now + TTL)
            assert isinstance(answer, bool)
            alive.append(answer)

    universe.spawn(play())
    universe.run(60.0)
    return alive


@pytest.mark.parametrize(
    "delays",
    [(0.005, 0.005, 0.0115), (0.005, 0.005, 0.012), (0.001, 0.002, 0.003, 0.005, 0.007), (0.005, 0.005, 0.005)],
    ids=str,
)
def test_a_node_that_is_being_lifted_counts_for_its_target_only(delays: tuple[float, ...]) -> None:
    assert first_renewals(delays) == [True] * GRANTS
