"""Schedules in which servers come back from old snapshots, several at once, while clients' clocks are hours or days wrong.

The servers' own clocks differ by less than one longest ttl: that is what a floor after a loss of memory rests on.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from lockline.backends.redlock.scripts import VOUCHED

from .directed import Directed
from .simulated import Pause
from .simulation import LONGEST, Story

HOUR = 3600 * 10**6
WRONG = (0, 0, -HOUR, 3 * HOUR, 5 * 24 * HOUR, 400 * 24 * HOUR)
"""By how many microseconds a client's clock is wrong."""
SKEW = 400.0
"""By how many milliseconds a server's clock may be ahead of the others'."""


class Restored(Directed):
    """Ann, whose clock is wrong, is granted by two nodes; one of them and the third come back from old snapshots; Bob is granted by
    those two. Whatever Ann's number was, nobody whom Bob can ask remembers it."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, fault="rollback")
        self.ann.wall = self._wrong  # type: ignore[method-assign]
        self.bob.wall = lambda: int(self.universe.now * 1e6)  # type: ignore[method-assign]
        self.offset = 0
        self.universe.steps = [self.random.uniform(0, SKEW) for _ in range(3)]
        self.copies: list[list[Any]] = [[], [], []]

    def _wrong(self) -> int:
        return max(0, int(self.universe.now * 1e6) + self.offset)

    def _old_copy(self, node: int) -> Any:
        return self.random.choice(self.copies[node][-6:]).copy()

    async def _play(self) -> None:
        universe, chance = self.universe, self.random
        while True:
            self.rounds += 1
            for node in range(3):
                self.copies[node].append(universe.nodes[node].snapshot())
            self.offset = chance.choice(WRONG)
            lagging, forgetful, witness = chance.sample(range(3), 3)
            universe.cut |= {("ann", lagging), ("bob", witness)}
            held = await self._take(self.ann, LONGEST, 10)
            await self._let_go(self.ann, held)
            for node in chance.choice(((forgetful,), (forgetful, lagging))):
                universe.kill(node)
                universe.start(node, self._old_copy(node))
            number = 20
            until = universe.now + 2.5 * LONGEST
            while universe.now < until:
                number += 1
                taken = await self._take(self.bob, LONGEST, number)
                if taken is not None:
                    await self._let_go(self.bob, taken)
                    break
                await Pause(universe.now + 0.02)
            universe.cut.clear()


class Forgetful(Story):
    """Random clients and faults; a restart brings back a snapshot of any age, and any number of servers may restart at once."""

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        universe = self.universe
        universe.steps = [self.random.uniform(0, SKEW) for _ in universe.nodes]
        for port in self.ports:
            offset = self.random.choice(WRONG)
            wrong = partial(lambda offset: max(0, int(universe.now * 1e6) + offset), offset)
            port.wall = wrong  # type: ignore[method-assign]
        self.copies: list[list[Any]] = [[node.snapshot()] for node in universe.nodes]

    def fault(self) -> None:
        universe, chance = self.universe, self.random
        node = chance.randrange(len(universe.nodes))
        kind = chance.choice(("copy", "copy", "restore", "restore", "cut", "slow"))
        self.outcomes[kind] += 1
        if kind == "copy":
            self.copies[node].append(universe.nodes[node].snapshot())
        elif kind == "restore":
            for one in {node, chance.randrange(len(universe.nodes))} - universe.down:
                universe.kill(one)
                universe.after(chance.uniform(0.0, 0.3), universe.start, one, self._copy_of(one))
        elif kind == "cut":
            pair = (chance.choice(self.ports).client, node)
            universe.cut.add(pair)
            universe.after(chance.uniform(0.0, 2.0), universe.cut.discard, pair)
        else:
            self.slow[node] = chance.uniform(0.005, 0.2)
            universe.after(chance.uniform(0.0, 0.5), self.slow.pop, node, None)

    def _copy_of(self, node: int) -> Any:
        return self.random.choice(self.copies[node][-8:]).copy()


class Switched(Directed):
    """Servers whose disks have everything, until somebody switches that off on one of them for a while: what it does meanwhile is
    lost when it dies, and its own file of settings then says again that nothing can be lost.

    `soon`: it dies and is back before its last word on the disk is too old to be believed.
    """

    def __init__(self, seed: int, *, soon: bool) -> None:
        super().__init__(seed, fault="switch")
        self.soon = soon
        self.universe.durable = ["1"] * 3
        for node in self.universe.nodes:
            node.memory.record["durable"] = "1"
        for port in (self.ann, self.bob):
            port.wall = lambda: int(self.universe.now * 1e6)  # type: ignore[method-assign]

    async def _play(self) -> None:
        universe, chance = self.universe, self.random
        while True:
            self.rounds += 1
            for number in range(3):
                await self._let_go(self.ann, await self._take(self.ann, LONGEST, number))
            lagging, forgetful, witness = chance.sample(range(3), 3)
            on_disk = universe.nodes[forgetful].snapshot()
            universe.durable[forgetful] = "0"
            universe.cut |= {("ann", lagging), ("bob", witness)}
            switched = universe.now
            number = 10
            age = chance.uniform(0.0, VOUCHED / 1500) if self.soon else VOUCHED / 1000 + chance.uniform(0.1, 3.0)
            held = None
            while held is None or universe.now < switched + age:
                await self._let_go(self.ann, held)
                await Pause(universe.now + chance.uniform(0.1, 0.5))
                number += 1
                held = await self._take(self.ann, LONGEST, number)
            # Ann holds, and half of her majority forgets it.
            universe.kill(forgetful)
            universe.durable[forgetful] = "1"
            universe.start(forgetful, on_disk)
            taken = None
            until = universe.now + 2.5 * LONGEST
            while taken is None and universe.now < until:
                number += 1
                taken = await self._take(self.bob, LONGEST, number)
                await Pause(universe.now + 0.02)
            await self._let_go(self.bob, taken)
            await self._let_go(self.ann, held)
            universe.cut.clear()
            await Pause(universe.now + 1.2 * LONGEST)
