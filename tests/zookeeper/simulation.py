"""ZooKeeper's session on a virtual clock: a client, its server, a leader, links that stall and are cut, processes that freeze.

What ZooKeeper does here is what it does there, without its rounding, which is in our favour: the leader ends a session exactly
one timeout after the last news of it; it has news by a connection that is made and by the servers' replies to its pings.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from lockline.backends.zookeeper.session import PROOFS, Session
from lockline.core.claim import Ceiling

TICK = 2.0
FOR_EVER = float("inf")


class Trust(Protocol):
    """A client's way to know until when its session is safe: ours, or a mutant."""

    ceiling: Ceiling

    def connected(self, sent: float, timeout: float, asked: int) -> None: ...
    def sent(self, moment: float) -> None:
        """A request goes out."""

    def read(self, sent: float, answered: float) -> None:
        """A read was answered."""

    def confirm(self, sent: float, answered: float) -> None:
        """A write was answered."""

    def due(self, now: float) -> float: ...


class Ours(Session):
    """The real thing. Reads mean nothing to it."""

    def __init__(self, timeout: float) -> None:
        super().__init__(1, timeout, 0, 0.0)

    def sent(self, moment: float) -> None:
        pass

    def read(self, sent: float, answered: float) -> None:
        pass


@dataclass
class Trouble:
    """What goes wrong, as spans of time: a message that would arrive then arrives at its end, or never."""

    spans: list[tuple[float, float]] = field(default_factory=list)
    cut: float = FOR_EVER
    """From here on nothing arrives, nor does what was held up until then."""

    def passes(self, moment: float) -> float:
        """When something gets through that would at this moment, were all well."""
        for begin, end in self.spans:
            if begin <= moment < end:
                moment = end
        return moment if moment < self.cut else FOR_EVER


class Link:
    """One direction of a connection: what is sent arrives in order, late or not at all."""

    def __init__(self, world: World, trouble: Trouble, receiver: Trouble) -> None:
        self._world = world
        self._trouble = trouble
        self._receiver = receiver
        self._last = 0.0

    def send(self, handle: Callable[[], None]) -> None:
        """Deliver this at the other end, once that runs."""
        dice = self._world.dice
        arrives = self._trouble.passes(max(self._world.now + dice.uniform(0.0002, 0.004), self._last))
        handled = self._receiver.passes(arrives) if arrives < FOR_EVER else FOR_EVER
        if handled < FOR_EVER:
            # What two links held up is let go at one moment: which comes first is anybody's guess.
            self._last = max(handled + dice.uniform(0.0, 0.002), self._last + 1e-6)
            self._world.at(self._last, handle)


class Server:
    """A follower: it hears of sessions, passes writes on, and answers the leader's pings with what it has heard."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.frozen = Trouble()
        self.to_leader, self.from_leader = Trouble(), Trouble()
        self.from_client, self.to_client = Trouble(), Trouble()
        self.up = Link(world, self.to_leader, world.leader_frozen)
        self.down = Link(world, self.from_leader, self.frozen)
        self._heard = False

    def hear(self) -> None:
        self._heard = True

    def pinged(self) -> None:
        """Reply with the sessions that were heard of since the last one."""
        heard, self._heard = self._heard, False
        self.up.send(self.world.news if heard else lambda: None)


class World:
    """One client with one session, from its making to the end of the story."""

    def __init__(
        self, seed: int, make: Callable[[float], Trust], *, faults: bool = True, ticks: int | None = None
    ) -> None:
        self.dice = random.Random(seed)
        self.now = 0.0
        self.timeout = TICK * (ticks or self.dice.choice([2, 2, 2, 3, 5]))
        self.ended: float | None = None
        self.overlap = 0.0
        """How long the client trusted a session that was over."""
        self.least = FOR_EVER
        """The least time that the client had left while all was well."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.leader_frozen = Trouble()
        self.servers = [Server(self, number) for number in range(2)]
        self._last_news = 0.0
        self._connection = 0
        self.trust = make(self.timeout)
        self._sent = 0.0
        self._proved = False
        if faults:
            self._plan()
        self._ping()
        self._watch_expiry()
        self._connect()

    def at(self, moment: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), do))

    def run(self) -> World:
        """Until the session has ended, or long enough."""
        until = 12 * self.timeout
        while self._events and self.now < until:
            self.now, _, do = heapq.heappop(self._events)
            do()
            if self.ended is not None:
                # What is trusted from here on is trusted beside the next holder.
                self.overlap = max(self.overlap, self.trust.ceiling.until - self.now)
            elif self._proved:
                self.least = min(self.least, self.trust.ceiling.until - self.now)
        return self

    # -- the leader ----------------------------------------------------------------------------------

    def news(self) -> None:
        """The leader hears of the session."""
        if self.ended is None:
            self._last_news = self.now

    def _ping(self) -> None:
        for server in self.servers:
            server.down.send(server.pinged)
        late = self.dice.choice([0.0, self.dice.uniform(0, TICK / 8)])
        # A leader that stood still sends the ping that is due as soon as it runs.
        self.at(self.leader_frozen.passes(self.now + TICK / 2 + late), self._ping)

    def _watch_expiry(self) -> None:
        if self.now >= self._last_news + self.timeout:
            self.ended = self.now
            return
        self.at(self.leader_frozen.passes(self._last_news + self.timeout), self._watch_expiry)

    # -- the client ----------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Ask the next server for the session; what is still under way to and from the last one is nobody's any more."""
        self._connection += 1
        mine, sent = self._connection, self.now
        server = self.servers[mine % 2]
        out = Link(self, server.from_client, server.frozen)
        back = Link(self, server.to_client, Trouble())

        def made() -> None:
            if self._connection == mine:
                self.trust.connected(sent, self.timeout, 0)
                self._beat(mine, server, out, back)

        def at_leader() -> None:
            self.news()
            if self.ended is None:
                server.down.send(lambda: back.send(made))

        def at_server() -> None:
            server.hear()
            server.up.send(at_leader)

        out.send(at_server)
        if self.dice.random() < 0.3:
            # A client that finds its server too silent goes to the other one.
            self.at(self.now + self.dice.uniform(0.2, 4) * self.timeout, lambda: self._leave(mine))

    def _leave(self, mine: int) -> None:
        if self._connection == mine:
            self._connect()

    def _beat(self, mine: int, server: Server, out: Link, back: Link) -> None:
        if self._connection != mine:
            return
        if self.dice.random() < 0.5:
            self._read(mine, server, out, back)
        if self.now >= self.trust.due(self.now):
            self._write(mine, server, out, back)
        self.at(self.now + self.timeout / (2 * PROOFS), lambda: self._beat(mine, server, out, back))

    def _read(self, mine: int, server: Server, out: Link, back: Link) -> None:
        sent = self.now
        self.trust.sent(sent)

        def answered() -> None:
            if self._connection == mine:
                self.trust.read(sent, self.now)

        def at_server() -> None:
            server.hear()
            back.send(answered)

        out.send(at_server)

    def _write(self, mine: int, server: Server, out: Link, back: Link) -> None:
        sent = self.now
        self.trust.sent(sent)
        self.trust.proving(sent)  # type: ignore[attr-defined]

        def answered() -> None:
            if self._connection == mine:
                self.trust.confirm(sent, self.now)
                self._proved = True

        def committed() -> None:
            server.down.send(lambda: back.send(answered))

        def at_leader() -> None:
            if self.ended is None:
                # A disk and a majority.
                self.at(self.leader_frozen.passes(self.now + self.dice.uniform(0.001, 0.01)), committed)

        def at_server() -> None:
            server.hear()
            server.up.send(at_leader)

        out.send(at_server)

    # -- what goes wrong -----------------------------------------------------------------------------

    def _plan(self) -> None:
        """Stalls here and there; and then, often just when one is over, the server is lost to the leader."""
        t, dice = self.timeout, self.dice
        server = self.servers[1]
        ends = [dice.uniform(2, 6) * t]
        for _ in range(dice.choice([1, 1, 2, 3])):
            length = dice.uniform(0.1, 0.95) * t
            begin = dice.choice([ends[-1] - length, ends[-1], dice.uniform(1, 6) * t])
            stalled = dice.choice(
                [[server.from_client], [server.to_client], [server.to_leader], [server.from_leader], [server.frozen],
                 [self.leader_frozen], [server.to_leader, server.from_leader]]
            )  # fmt: skip
            for one in stalled:
                one.spans.append((begin, begin + length))
            ends.append(begin + length)
        moment = dice.choice(ends) + dice.choice([0.0, dice.uniform(0, 0.02), dice.uniform(0, 0.1)])
        fate = dice.randrange(4)
        if fate == 0:
            server.frozen.spans.append((moment, 1e9))
        elif fate == 1:
            # Cut off from the leader, together with the client.
            server.to_leader.cut = server.from_leader.cut = moment
        elif fate == 2:
            server.to_leader.cut = moment
        else:
            for way in (server.to_leader, server.from_leader, server.to_client, server.from_client):
                way.cut = moment
        for trouble in (
            self.leader_frozen,
            server.frozen,
            server.to_leader,
            server.from_leader,
            server.to_client,
            server.from_client,
        ):
            trouble.spans.sort()
