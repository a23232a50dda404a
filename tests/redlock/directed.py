"""Directed schedules: the next majority is forced onto the server that came back and the one that lagged behind.

Random schedules miss these. Each round is played by Ann and Bob on three nodes in changing roles.
"""

from __future__ import annotations

from lockline.backends.redlock import rules
from lockline.backends.redlock.claims import Attempt
from lockline.backends.redlock.commands import NodeRequest
from lockline.backends.redlock.protocol import Protocol

from .simulated import Pause, SimulatedFanout
from .simulation import LONGEST, Story


class Directed(Story):
    """Ann is granted by two nodes while the third lags; one of the two comes back from a fault; Bob reaches only that one and the
    laggard. `in_flight`: the fault comes between the two votes for Ann."""

    def __init__(self, seed: int, *, fault: str, in_flight: bool = False) -> None:
        super().__init__(seed, nodes=3, clients=0)
        self.kind = fault
        self.in_flight = in_flight
        self.rounds = 0
        self.held_up: tuple[int, float] | None = None
        self.ann = SimulatedFanout(self.universe, "ann", node_timeout=1.0)
        self.bob = SimulatedFanout(self.universe, "bob", node_timeout=1.0)
        self.universe.spawn(self._play())

    def _delay(self, client: str, node: int, request: NodeRequest) -> float:
        usual = self.random.uniform(0.0001, 0.002)
        if self.held_up is not None and client == "ann" and request.op == "acquire" and node == self.held_up[0]:
            return self.held_up[1]
        return usual

    async def _take(self, port: SimulatedFanout, ttl: float, number: int) -> Attempt | None:
        attempt = Attempt("x", rules.attempt_id(f"{port.client}-{self.rounds}", number), ttl, "")
        protocol = Protocol(port)
        if not await protocol.acquire(attempt, self.universe.now + ttl):
            return None
        self.judge.granted("x", attempt, self.universe.now, attempt.sent + ttl * 0.99)
        return attempt

    async def _let_go(self, port: SimulatedFanout, attempt: Attempt | None) -> None:
        if attempt is not None:
            self.judge.ended("x", attempt)
            try:
                await Protocol(port).release(attempt, self.universe.now + 0.2)
            except ConnectionError:
                pass

    async def _play(self) -> None:
        universe, chance = self.universe, self.random
        while True:
            self.rounds += 1
            # All three agree on where the numbers are.
            for number in range(3):
                await self._let_go(self.ann, await self._take(self.ann, LONGEST, number))
            lagging, forgetful, witness = chance.sample(range(3), 3)
            universe.cut |= {("ann", lagging), ("bob", witness)}
            if self.in_flight:
                # The witness gets Ann's request late: after the other has voted, died and come back.
                self.held_up = (witness, chance.uniform(0.05, 0.09))
                universe.after(chance.uniform(0.005, 0.03), self._strike, forgetful)
            snapshot = universe.nodes[forgetful].snapshot()
            held = await self._take(self.ann, LONGEST, 10)
            self.held_up = None
            if not self.in_flight:
                await self._let_go(self.ann, held)
                self._strike(forgetful, snapshot)
            # Bob's own tries lift the laggard's counter: at times he must come only once it is too late for them to help.
            await Pause(universe.now + chance.choice((0.0, 1.1)) * LONGEST)
            until = universe.now + 2.5 * LONGEST
            number = 20
            while universe.now < until:
                number += 1
                taken = await self._take(self.bob, LONGEST, number)
                if taken is not None:
                    await self._let_go(self.bob, taken)
                    break
                await Pause(universe.now + 0.02)
            if self.in_flight:
                await self._let_go(self.ann, held)
            universe.cut.clear()
            await Pause(universe.now + 1.2 * LONGEST)

    def _strike(self, node: int, snapshot: object = None) -> None:
        universe = self.universe
        universe.kill(node)
        if self.kind == "wipe":
            self._back(node, None)
        elif self.kind == "flush":
            # FLUSHALL: the process lives on, its memory is gone.
            universe.start(node, None)
            self.replace(node)
        else:
            self._back(node, snapshot if self.kind == "rollback" else universe.nodes[node].snapshot())


class Lagging(Directed):
    """Nodes whose counters differ, and holders that die without a word: only equal numbers on a majority are a grant."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, fault="none")

    async def _play(self) -> None:
        universe, chance = self.universe, self.random
        while True:
            self.rounds += 1
            lagging, middle, ahead = chance.sample(range(3), 3)
            universe.cut |= {("ann", lagging), ("bob", ahead)}
            for number in range(chance.randint(1, 4)):
                await self._let_go(self.ann, await self._take(self.ann, LONGEST, number))
            # Bob meets two different counters, and dies.
            died = await self._take(self.bob, 0.2, 10)
            await Pause(universe.now + 0.25)
            if died is not None:
                self.judge.ended("x", died)
            universe.cut.clear()
            universe.cut.add(("ann", middle))
            await self._let_go(self.ann, await self._take(self.ann, LONGEST, 20))
            universe.cut.clear()
            await Pause(universe.now + 0.1)
