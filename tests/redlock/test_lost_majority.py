"""A majority, or all, of a cluster's memory lost at once: setting it up again gives no second holder, and running clients recover."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import pytest

import lockline
from lockline.backends.redlock import cluster
from lockline.backends.redlock.commands import NodeRequest
from tests.servers.process import wait_for
from tests.tier import sample

from .directed import Directed
from .operating import nodes_of, run
from .servers import servers
from .simulated import CLUSTER, Pause
from .simulation import LONGEST
from .test_late_requests import both, client_of
from .test_mutants import SEED, crimes

TTL = 2.0


def floor_of_tomorrow() -> int:
    return time.time_ns() // 1000 + 86400 * 10**6


@pytest.mark.server
@pytest.mark.parametrize("wiped", sample([3], [2, 3]))
def test_a_floor_from_the_operator_gives_nobody_a_lease_while_an_old_one_is_valid(wiped: int) -> None:
    with servers(3, longest=TTL) as three, lockline.connect(three.url) as ann, lockline.connect(three.url) as bob:
        held = ann.lock("x", ttl=TTL, renew=False).acquire()
        for node in three.nodes[:wiped]:
            node.command("FLUSHALL")
        done = run("init", three.url, "--floor", str(floor_of_tomorrow()), "--max-ttl", "2s")
        given: list[Any] = []

        def granted() -> bool:
            try:
                lease = bob.lock("x", ttl=TTL).try_acquire()
            except lockline.QuorumNotReached:
                return False
            given.append((lease, held.remaining()))
            return lease is not None

        wait_for(granted, 60, "a grant")
        lease, left = given[-1]
        assert left <= 0, f"two valid leases for {left:.2f} s"
        assert lease.token > held.token
        assert done["plan"][0].startswith("keep them shut for 2.")


@pytest.mark.server
def test_what_the_others_gave_while_a_floor_was_waited_for_is_below_it() -> None:
    with servers(3, longest=TTL) as three:
        for node in three.nodes[:2]:
            node.command("FLUSHALL")
        numbers: list[int] = []

        def meanwhile(seconds: float) -> None:
            # The third goes on giving numbers, which no majority makes a grant.
            three[2].command("ZADD", "lockline:redlock:counters", "GT", floor + 10**9, "x")
            numbers.append(floor + 10**9)

        floor = floor_of_tomorrow()
        cluster.init(nodes_of(three.url), floor=floor, sleep=meanwhile).act()
        assert all(one.said and one.said.highest >= numbers[0] for one in cluster.status(nodes_of(three.url)))


@pytest.mark.server
@both
def test_a_running_client_recovers_when_all_was_wiped_and_set_up_again(flavour: str) -> None:
    with servers(3, longest=TTL) as three, client_of(flavour, three.url) as user:

        def lock() -> int:
            lease = user.do(lambda: user.client.lock("x", ttl=TTL).acquire(timeout=60))
            # A short one may be over by now on a busy machine; its number is what counts.
            with contextlib.suppress(lockline.LeaseLost):
                user.do(lambda: lease.release())
            return int(lease.token)

        before = lock()
        held = user.do(lambda: user.client.lock("held", ttl=TTL).acquire(timeout=60))
        for node in three.nodes:
            node.command("FLUSHALL")
        run("init", three.url, "--max-ttl", "2s")
        after: list[int] = []

        def recovered() -> bool:
            try:
                after.append(lock())
            except lockline.QuorumNotReached:
                return False
            return True

        wait_for(recovered, 60, "a grant")
        assert after[0] > before
        wait_for(lambda: held.lost.is_set(), 60, "the old lease to be lost")


class Rescued(Directed):
    """Ann holds at two nodes; one of them and the third lose everything, and the operator sets a floor."""

    waits = LONGEST * 1.02 + 0.01

    def __init__(self, seed: int) -> None:
        super().__init__(seed, fault="wipe")

    def rescue(self, nodes: Sequence[int]) -> None:
        for node in nodes:
            self.universe.nodes[node].apply(NodeRequest("install", (int(LONGEST * 1000), 10**6 * self.rounds)), CLUSTER)

    async def _play(self) -> None:
        universe, chance = self.universe, self.random
        while True:
            self.rounds += 1
            lost, third = chance.sample(range(3), 2)
            universe.cut |= {("ann", third)}
            held = await self._take(self.ann, LONGEST, 1)
            for node in (lost, third):
                universe.nodes[node].restart(None)
            universe.after(self.waits, self.rescue, (lost, third))
            taken = None
            number = 10
            while taken is None:
                number += 1
                taken = await self._take(self.bob, LONGEST, number)
                await Pause(universe.now + 0.02)
            await self._let_go(self.bob, taken)
            await self._let_go(self.ann, held)
            universe.cut.clear()
            await Pause(universe.now + 1.2 * LONGEST)


class RescuedAtOnce(Rescued):
    """The operator does not wait."""

    waits = 0.0


def test_a_floor_that_is_not_waited_for_gives_two_holders() -> None:
    assert crimes(Rescued(SEED).run(sample(30, 60))) == []
    assert any("overlapping" in crime for crime in crimes(RescuedAtOnce(SEED).run(sample(30, 60))))
