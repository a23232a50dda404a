"""What the protocol needs of the world: all nodes asked at once, and their answers as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .commands import NodeRequest, Reply
from .membership import Membership

Note = Callable[[int, NodeRequest, Reply], None]
"""Takes the answer of a node; those too that come after the conversation."""


class Talk(Protocol):
    """One conversation with all nodes, on one connection to each: what was sent to a node first, it does first."""

    def send(self, node: int, request: NodeRequest) -> None:
        """Send without waiting. A node that cannot be reached answers with a Failure; what must arrive, the channel repeats."""

    def send_all(self, request: NodeRequest) -> None:
        """The same request to every node, at once."""

    def follows(self, node: int, attempt: str, sent: float) -> bool:
        """Whether the node does what is sent to it now after that attempt's acquire, sent then: one connection for both."""

    async def next(self, until: float) -> tuple[int, NodeRequest, Reply] | None:
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
