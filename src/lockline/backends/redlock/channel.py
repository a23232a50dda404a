"""What the protocol needs of the world: all nodes asked at once, and their answers as they come."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ...runtime import clock
from ..resp.errors import NoAnswer, Refused
from .commands import NodeAnswer, NodeRequest, again
from .membership import Membership
from .rules import majority

SETTLE = 0.02
"""How long a first connection waits for the slower nodes once a majority is there."""
MOST_OWED = 10_000
"""Releases that are remembered for one node, at most."""
LAST_CHANCE = 0.5
"""How long `close` tries to deliver releases that have not arrived."""

TROUBLE: Final = (NoAnswer, Refused, OSError)
"""What goes wrong on a connection; TimeoutError is an OSError."""

TakeAnswer = Callable[[NodeAnswer], None]
"""Takes the answer of a node; those too that come after the conversation."""


class Talk(Protocol):
    """One conversation with all nodes, on one connection to each: what was sent to a node first, it does first."""

    answers: deque[NodeAnswer]
    """What has come and nobody has taken yet."""

    def send(self, node: int, request: NodeRequest) -> None:
        """Send without waiting. A node that cannot be reached answers with a Failure; what must arrive is repeated."""

    def send_all(self, request: NodeRequest, nodes: Sequence[int] | None = None) -> None:
        """The same request to every node, or to each of these, at once."""

    def follows(self, node: int, attempt: str, sent: float) -> bool:
        """Whether the node does what is sent to it now after that attempt's acquire, sent then: one connection for both."""

    async def wait(self, until: float, least: int = 1) -> bool:
        """Wait for so many answers, or for fewer if no more are due or the time is over; whether there are any.

        More than one, where fewer decide nothing: each wake-up costs, and takes time from servers that share the machine.
        """

    async def next(self, until: float) -> NodeAnswer | None:
        """The next answer; None when no more are due, or none came by then."""

    def part(self) -> None:
        """The end of it. Answers that are still due go to the note-taker when they come."""


class Fanout:
    """The way to the nodes, all asked at once: blocking sockets, an event loop, or a simulation."""

    def __init__(self, labels: Sequence[str], node_timeout: float) -> None:
        self.labels = labels
        self.node_timeout = node_timeout
        self.membership = Membership(labels)
        self.closed = False

    @property
    def cluster(self) -> str:
        """The cluster that these nodes are; empty while that is not known."""
        return self.membership.cluster or ""

    now = staticmethod(clock.now)

    def wall(self) -> int:
        """Microseconds since 1970, the hint for numbers; nothing depends on its truth."""
        return time.time_ns() // 1000

    def patience(self, ttl: float) -> float:
        """How long one node may take, small beside this ttl."""
        return min(self.node_timeout, ttl / 5)

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    async def talk(self, note: TakeAnswer, until: float, *, kept: bool = False) -> Talk:
        """A conversation; QuorumNotReached if too few servers belong to the cluster.

        `kept`: it is about leases that are held, and waits for nobody who wants one.
        """
        raise NotImplementedError

    def hurry(self) -> None:
        """Every node's word is needed: do not wait out the pause before one that is away is tried again."""

    def forked(self) -> None:
        """In a child: the parent's sockets are left alone, without a word on them."""

    async def close(self) -> None:
        """Deliver what can be delivered, and let go of all connections."""


class OwedReleases:
    """Releases that have to arrive at a node: repeated until it has answered, or until their ttl is over anyway."""

    __slots__ = ("_membership", "_owed")

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._owed: dict[str, tuple[NodeRequest, float]] = {}

    def __bool__(self) -> bool:
        return bool(self._owed)

    def add(self, request: NodeRequest) -> None:
        """This request got no answer, or cannot be sent; only a release is owed."""
        if request.op == "release" and self._membership.cluster is not None and len(self._owed) < MOST_OWED:
            until = clock.now() + min(self._membership.longest, 3600.0)
            self._owed.setdefault(request.args[1], (request, until))

    def due(self) -> list[NodeRequest]:
        """What is to be repeated, as it goes over another connection; nothing while the cluster is not known."""
        now = clock.now()
        for attempt, (_, until) in list(self._owed.items()):
            if now >= until:
                self._owed.pop(attempt, None)
        return [again(request) for request, _ in list(self._owed.values())] if self._membership.cluster else []

    def settle(self, request: NodeRequest) -> None:
        """The node has answered."""
        self._owed.pop(request.args[1], None)


def connect_timeout(node_timeout: float) -> float:
    """How long a connection may take that has to be made, encrypted, authenticated and greeted."""
    return max(1.0, 4 * node_timeout)


def time_to_connect(now: float, until: float, node_timeout: float, lively: int, nodes: int) -> float:
    """Until when to wait for connections: some time has to be left for asking, or the servers that are there say nothing.

    With so many known to be silent that the others are too few, this is only to see whether they are back.
    """
    patience = connect_timeout(node_timeout) if lively >= majority(nodes) else node_timeout
    return min(until - min(node_timeout, (until - now) / 2), now + patience)
