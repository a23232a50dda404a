"""What the protocol needs of the world: all nodes asked at once, and their answers as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ..resp.errors import NoAnswer, Refused
from .commands import NodeAnswer, NodeRequest
from .membership import Membership
from .rules import majority

SETTLE = 0.02
"""How long a first connection waits for the slower nodes once a majority is there."""
LAST_CHANCE = 0.5
"""How long `close` tries to deliver releases that have not arrived."""

TROUBLE: Final = (NoAnswer, Refused, OSError)
"""What goes wrong on a connection; TimeoutError is an OSError."""

Note = Callable[[NodeAnswer], None]
"""Takes the answer of a node; those too that come after the conversation."""


class Talk(Protocol):
    """One conversation with all nodes, on one connection to each: what was sent to a node first, it does first."""

    def send(self, node: int, request: NodeRequest) -> None:
        """Send without waiting. A node that cannot be reached answers with a Failure; what must arrive, the channel repeats."""

    def send_all(self, request: NodeRequest) -> None:
        """The same request to every node, at once."""

    def follows(self, node: int, attempt: str, sent: float) -> bool:
        """Whether the node does what is sent to it now after that attempt's acquire, sent then: one connection for both."""

    async def next(self, until: float) -> NodeAnswer | None:
        """The next answer; None when no more are due, or none came by then."""

    def part(self) -> None:
        """The end of it. Answers that are still due go to the note-taker when they come."""


class Fanout(Protocol):
    """The way to the nodes: blocking sockets, an event loop, or a simulation."""

    labels: Sequence[str]
    membership: Membership

    def now(self) -> float: ...
    async def sleep(self, seconds: float) -> None: ...
    def wall(self) -> int:
        """Microseconds since 1970, the hint for numbers; nothing depends on its truth."""

    def patience(self, ttl: float) -> float:
        """How long one node may take, small beside this ttl."""

    async def talk(self, note: Note, until: float, *, kept: bool = False) -> Talk:
        """A conversation; QuorumNotReached if too few servers belong to the cluster.

        `kept`: it is about leases that are held, and waits for nobody who wants one.
        """


def connect_timeout(node_timeout: float) -> float:
    """How long a connection may take that has to be made, encrypted, authenticated and greeted."""
    return max(1.0, 4 * node_timeout)


def time_to_connect(now: float, until: float, node_timeout: float, lively: int, nodes: int) -> float:
    """Until when to wait for connections: some time has to be left for asking, or the servers that are there say nothing.

    With so many known to be silent that the others are too few, this is only to see whether they are back.
    """
    patience = connect_timeout(node_timeout) if lively >= majority(nodes) else node_timeout
    return min(until - min(node_timeout, (until - now) / 2), now + patience)
