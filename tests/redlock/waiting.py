"""Clients that wait for one name, on the simulated cluster: the backend itself, a virtual clock, and hints that take a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockline.backends.redlock.backend import RedlockBackend
from lockline.backends.redlock.commands import NodeRequest
from lockline.backends.redlock.target import NODE_TIMEOUT, RedlockTarget
from lockline.core.claim import Claim, Grant, Waiting
from lockline.core.waiting import PAUSE
from lockline.errors import BackendUnavailable
from lockline.runtime.section import Section

from .model import ModelNode
from .simulated import Pause, SimulatedFanout, Universe

NAME = "x"
TTL = 20.0


class Shows(ModelNode):
    """A node that is told who waits, for people to look at; nobody looks here."""

    def _show(self, cluster: str, name: str, claim: str, ttl: int, info: str) -> list[Any]:
        return [b"yes", b""]

    def _hide(self, cluster: str, name: str, claim: str) -> list[Any]:
        return [b"yes", b""]


class Machine:
    """What all share where clients and servers run on few processors: whatever is asked costs time, and the rest waits for it."""

    def __init__(self, universe: Universe, cost: float) -> None:
        self._universe = universe
        self._cost = cost
        self._free = 0.0
        self.requests = 0

    def delay(self, client: str, node: int, request: NodeRequest) -> float:
        """Until this packet has been dealt with."""
        self.requests += 1
        now = self._universe.now
        self._free = max(self._free, now) + self._cost
        return self._free - now + self._universe.random.uniform(0.0001, 0.0005)


class VirtualRuntime:
    """As much of a runtime as this backend asks for."""

    def __init__(self, universe: Universe) -> None:
        self._universe = universe

    def now(self) -> float:
        return self._universe.now

    def wall(self) -> float:
        return self._universe.now

    async def sleep(self, seconds: float) -> None:
        await Pause(self._universe.now + seconds)

    def section(self) -> Section:
        return Section()


class Hints:
    """Whoever waits listens, from when it subscribes."""

    def __init__(self, freed: Callable[[str], None]) -> None:
        self.freed = freed
        self.listens = False

    async def subscribe(self, channel: str, until: float) -> None:
        self.listens = True

    def unsubscribe(self, channel: str) -> None:
        self.listens = False


class Mailbox:
    """Wakes the one claim of a client."""

    def __init__(self, universe: Universe) -> None:
        self._universe = universe
        self.waiter: Any = None
        self.mail = False

    def heard(self, claim_id: str) -> None:
        self.mail = True
        self._universe.nudge(self)  # type: ignore[arg-type]

    async def wait(self, until: float) -> None:
        if not self.mail:
            await Pause(until, self)  # type: ignore[arg-type]
        self.mail = False


class Crowd:
    """So many clients that want the same lock once, each for a moment."""

    def __init__(
        self, seed: int, clients: int, *, cost: float, hold: float, node_timeout: float = NODE_TIMEOUT
    ) -> None:
        self.universe = Universe(seed, 5, make=Shows)
        self.universe.now = 1.0
        self.universe.set_up(60.0)
        self.machine = Machine(self.universe, cost)
        self.universe.delay = self.machine.delay
        self.granted: list[float] = []
        self.silences = 0
        self._hold = hold
        self._all: list[Hints] = []
        for number in range(clients):
            channel = SimulatedFanout(
                self.universe, f"c{number}", node_timeout=node_timeout, wall=lambda: int(self.universe.now * 1e6)
            )
            channel.membership.longest = 60.0
            self.universe.spawn(self._client(number, channel))

    async def _client(self, number: int, channel: SimulatedFanout) -> None:
        universe = self.universe
        hints: list[Hints] = []

        def listen(nodes: Any, timeout: float, freed: Callable[[str], None], victim: Any) -> Hints:
            hints.append(Hints(freed))
            return hints[0]

        target = RedlockTarget("redlock://", (), channel.node_timeout, 0.01, "")
        backend = RedlockBackend(target, VirtualRuntime(universe), channel, listen)  # type: ignore[arg-type]
        backend._random = universe.random
        mailbox = Mailbox(universe)
        backend.report_to(mailbox)  # type: ignore[arg-type]
        self._all.append(hints[0])
        claim = Claim(NAME, f"c{number}-1", "", "lock", 1, 1, TTL, 0.0, "")
        said = await backend.enter(claim, wait=True, until=float("inf"))
        look_by = 0.0
        while not isinstance(said, Grant):
            assert isinstance(said, Waiting)
            await mailbox.wait(look_by)
            try:
                said = await backend.place(claim, universe.now + 10.0)  # type: ignore[assignment]
            except BackendUnavailable:
                # As the core does: not loss, but silence.
                self.silences += 1
                await Pause(universe.now + PAUSE)
                look_by = 0.0
                continue
            look_by = said.look_by if isinstance(said, Waiting) else 0.0
        self.granted.append(universe.now)
        await Pause(universe.now + self._hold)
        await backend.leave(claim, universe.now + 10.0)
        for other in self._all:
            if other.listens:
                universe.after(universe.random.uniform(0.0005, 0.002), other.freed, NAME)

    def run(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        self.universe.run(seconds)
