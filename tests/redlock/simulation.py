"""Clients, faults and a judge for the simulated cluster. One seed, one history."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Callable
from typing import Any

from lockline.backends.redlock import rules
from lockline.backends.redlock.claims import Attempt
from lockline.backends.redlock.commands import NodeRequest
from lockline.backends.redlock.protocol import Protocol
from lockline.errors import QuorumNotReached

from .simulated import CLUSTER, Pause, SimulatedFanout, Universe

LONGEST = 1.0


class Judge:
    """Hears of every grant and says what was wrong: a token twice, one out of order, two holders at once."""

    def __init__(self) -> None:
        self.grants = 0
        self.one_trip = 0
        self.wrong: list[str] = []
        self.overlaps = 0
        self._tokens: dict[str, set[int]] = {}
        self._answered: dict[str, list[float]] = {}
        self._highest: dict[str, list[int]] = {}
        self._held: dict[str, dict[str, float]] = {}

    def granted(self, name: str, attempt: Attempt, answered: float, until: float) -> None:
        """A client was told that it holds the name."""
        token = attempt.token
        assert token is not None
        self.grants += 1
        self.one_trip += not attempt.promoted
        tokens = self._tokens.setdefault(name, set())
        if token in tokens:
            self.wrong.append(f"token {token} of {name!r} twice")
        tokens.add(token)
        times = self._answered.setdefault(name, [])
        highest = self._highest.setdefault(name, [])
        # "Later" means: began after the other was answered.
        before = bisect.bisect_right(times, attempt.sent)
        if before and highest[before - 1] >= token:
            self.wrong.append(f"token {token} of {name!r} after {highest[before - 1]}")
        times.append(answered)
        highest.append(max(token, highest[-1] if highest else 0))
        held = self._held.setdefault(name, {})
        if any(end > answered for end in held.values()):
            self.overlaps += 1
        held[attempt.id] = until

    def extended(self, name: str, attempt: Attempt, sent: float, until: float) -> None:
        """The holder may trust its lease for longer; and no higher token was granted before it asked."""
        before = bisect.bisect_left(self._answered[name], sent)
        assert attempt.token is not None
        if before and self._highest[name][before - 1] > attempt.token:
            self.wrong.append(f"token {attempt.token} of {name!r} confirmed after {self._highest[name][before - 1]}")
        if attempt.id in self._held[name]:
            self._held[name][attempt.id] = until

    def ended(self, name: str, attempt: Attempt) -> None:
        """The holder has let go."""
        self._held[name].pop(attempt.id, None)


class Resource:
    """Something that a lock protects and that fences: a number that each holder reads, thinks about, and writes back."""

    def __init__(self, *, enters: bool = True) -> None:
        self.value = 0
        self.written = 0
        self.mark = 0
        self.refused = 0
        self._enters = enters

    def read(self, token: int) -> int | None:
        """The value; the mark goes up when the holder arrives, not when it writes."""
        if self._enters:
            if token < self.mark:
                self.refused += 1
                return None
            self.mark = token
        return self.value

    def write(self, token: int, value: int) -> None:
        """Refused from a holder that is not the newest."""
        if token < self.mark:
            self.refused += 1
            return
        self.mark = token
        self.value = value
        self.written += 1

    @property
    def lost_updates(self) -> int:
        """Writes that somebody else's write, made without having seen them, undid."""
        return self.written - self.value


class Story:
    """A universe, its clients, and what is done to it."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 5,
        clients: int = 4,
        names: int = 1,
        resource: Resource | None = None,
        make: Any = None,
        wall: Callable[[], int] | None = None,
        protocol: Callable[[SimulatedFanout], Protocol] = Protocol,
        ttl: tuple[float, float] = (0.2, LONGEST),
        set_up: bool = True,
    ) -> None:
        self.universe = Universe(seed, nodes, **({"make": make} if make else {}))
        if set_up:
            self.universe.set_up(LONGEST)
        self.broken: set[int] = set()
        self.slow: dict[int, float] = {}
        self.universe.delay = self._delay
        self.judge = Judge()
        self.resource = resource
        self.random = self.universe.random
        self.ttl = ttl
        self.ports = [SimulatedFanout(self.universe, f"c{n}", wall=wall) for n in range(clients)]
        self.outcomes: Counter[str] = Counter()
        for number, port in enumerate(self.ports):
            self.universe.spawn(self._client(number, protocol(port), [f"name{n}" for n in range(names)]))

    async def _client(self, number: int, protocol: Protocol, names: list[str]) -> None:
        universe, chance = self.universe, self.random
        attempts = 0
        while True:
            name = chance.choice(names)
            ttl = chance.uniform(*self.ttl)
            attempts += 1
            attempt = Attempt(name, rules.attempt_id(f"c{number}-{attempts}", 1), ttl, "")
            if not await protocol.acquire(attempt, universe.now + ttl):
                self.outcomes["refused"] += 1
                await Pause(universe.now + chance.uniform(0.0, 0.05))
                continue
            until = universe.now + rules.left(ttl, protocol.drift, attempt.sent, universe.now)
            self.judge.granted(name, attempt, universe.now, until)
            await self._hold(protocol, attempt, until)
            if chance.random() < 0.02:
                # Dead without a word: only the ttl ends it.
                self.outcomes["died"] += 1
                self.judge.ended(name, attempt)
                await Pause(universe.now + chance.uniform(0.0, 2 * ttl))
                continue
            self.judge.ended(name, attempt)
            try:
                await protocol.release(attempt, universe.now + 1.0)
            except QuorumNotReached:
                self.outcomes["release unconfirmed"] += 1

    async def _hold(self, protocol: Protocol, attempt: Attempt, until: float) -> None:
        universe, chance = self.universe, self.random
        token = attempt.token
        assert token is not None
        value = self.resource.read(token) if self.resource is not None else None
        for _ in range(chance.choice((0, 0, 0, 0, 0, 0, 0, 1, 2))):
            await Pause(universe.now + chance.uniform(0.0, 0.6) * max(0.0, until - universe.now))
            if universe.now >= until:
                break
            sent = universe.now
            (alive,) = await protocol.extend([(attempt, attempt.ttl)], universe.now + attempt.ttl)
            if alive is not True:
                break
            if universe.now < until:
                until = max(until, universe.now + rules.left(attempt.ttl, protocol.drift, sent, universe.now))
                self.judge.extended(attempt.name, attempt, sent, until)
        if chance.random() < 0.05:
            # A pause that the holder does not notice: it goes on after its lease has ended.
            await Pause(universe.now + chance.uniform(0.5, 2.0) * attempt.ttl)
        else:
            await Pause(universe.now + chance.uniform(0.0, 0.01))
        if self.resource is not None and value is not None:
            self.resource.write(token, value + 1)

    def _delay(self, client: str, node: int, request: NodeRequest) -> float:
        return self.random.uniform(0.0001, 0.002) + self.slow.get(node, 0.0)

    # -- faults ------------------------------------------------------------------------------------

    def fault(self) -> None:
        """One random fault; what it breaks is mended a little later."""
        universe, chance = self.universe, self.random
        node = chance.randrange(len(universe.nodes))
        kind = chance.choice(("restart", "rollback", "wipe", "cut", "slow"))
        if kind in ("restart", "rollback", "wipe"):
            # One server at a time: what a majority does not remember, nobody does.
            if universe.down or self.broken:
                return
            self.broken.add(node)
            snapshot = universe.nodes[node].snapshot()
            lost = chance.uniform(0.0, 0.5) if kind == "rollback" else 0.0
            universe.after(lost, self._kill, node, kind, snapshot)
        elif kind == "cut":
            pair = (chance.choice(self.ports).client, node)
            universe.cut.add(pair)
            universe.after(chance.uniform(0.0, 0.5), universe.cut.discard, pair)
        else:
            self.slow[node] = chance.uniform(0.005, 0.2)
            universe.after(chance.uniform(0.0, 0.5), self.slow.pop, node, None)
        self.outcomes[kind] += 1

    def _kill(self, node: int, kind: str, snapshot: Any) -> None:
        universe = self.universe
        memory = {"restart": universe.nodes[node].snapshot(), "rollback": snapshot, "wipe": None}[kind]
        universe.kill(node)
        universe.after(self.random.uniform(0.0, 0.3), self._back, node, memory)

    def _back(self, node: int, memory: Any) -> None:
        self.universe.start(node, memory)
        if memory is None:
            self.replace(node)
        else:
            self.universe.after(LONGEST * 1.05, self.broken.discard, node)

    def replace(self, node: int) -> None:
        """What `lockline redlock replace` does: wait, then read the others, then let it in."""
        run = self.universe.nodes[node].run
        self.universe.after(LONGEST * 1.02 + 0.01, self.read_and_install, node, run)

    def read_and_install(self, node: int, run: str) -> None:
        universe = self.universe
        if universe.nodes[node].run != run:
            return
        replies = [
            other.apply(NodeRequest("highest", ()), CLUSTER)
            for at, other in enumerate(universe.nodes)
            if at != node and at not in universe.down
        ]
        floors = [int(reply[1]) for reply in replies if reply[0] == b"yes"]
        if len(floors) < rules.majority(len(universe.nodes)):
            universe.after(0.1, self.read_and_install, node, run)
            return
        universe.nodes[node].apply(NodeRequest("install", (int(LONGEST * 1000), max(floors))), CLUSTER)
        self.broken.discard(node)

    def run(self, seconds: float, *, faults_every: float | None = None, step_clocks: bool = False) -> Story:
        """Let so many virtual seconds pass, with faults at random moments."""
        universe, chance = self.universe, self.random
        end = universe.now + seconds
        when = universe.now
        while faults_every is not None and (when := when + chance.expovariate(1 / faults_every)) < end:
            universe.at(when, self.fault)
            if step_clocks and chance.random() < 0.5:
                node = chance.randrange(len(universe.nodes))
                universe.at(when, lambda node=node: universe.steps.__setitem__(node, chance.uniform(-5000, 5000)))
        universe.run(end)
        return self
