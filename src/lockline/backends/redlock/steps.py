"""What the operator's steps are made of: a server that was greeted, how each answers now, a plan, and what forbids one."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import LocklineError
from ...runtime import clock
from ..resp.commands import ServerError
from ..resp.connection_blocking import BlockingConnection
from ..resp.errors import refusal
from .channel import TROUBLE
from .channel_blocking import greeted
from .commands import NodeRequest, packed
from .membership import Greeting
from .target import Node

CONNECT_TIMEOUT = 2.0


class OperatorError(LocklineError):
    """The step is not safe, or not possible, as things are."""


@dataclass(frozen=True)
class NodeStatus:
    """One server as it answers now."""

    label: str
    said: Greeting | None
    problem: str = ""
    durable: bool = False

    @property
    def state(self) -> str:
        """serving, refusing, preparing, retired, empty, forgot or unreachable."""
        if self.said is None:
            return "unreachable"
        if self.said.state != "known":
            return self.said.state
        if self.said.serves:
            return "serving"
        return self.said.gate.partition(" ")[0]

    @property
    def cluster(self) -> str:
        """The cluster that it belongs to, or belonged to before it forgot; empty if there is none."""
        return self.said.cluster if self.said else ""

    @property
    def opened(self) -> bool:
        """Whether its gate has been open: only then can it have had a part in a grant."""
        return self.state in ("serving", "refusing")

    def names(self, nodes: Sequence[Node]) -> bool:
        """Whether its record is of exactly these servers, in whatever order."""
        return self.said is not None and set(self.said.members.split(",")) == {node.label for node in nodes}

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        said = self.said
        return {
            "node": self.label,
            "state": self.state,
            "problem": self.problem or None,
            "cluster": said.cluster if said else None,
            "incarnation": said.incarnation if said else None,
            "size": said.size if said else None,
            "max_ttl": said.longest / 1000 if said and said.longest else None,
            "highest": said.highest if said else None,
            "durable": self.durable,
        }


@dataclass
class Plan:
    """What a step will do, in sentences, and then the doing of it."""

    sentences: list[str]
    act: Callable[[], None]
    result: dict[str, Any] = field(default_factory=dict)


class GreetedServer:
    """A connection for the operator; greeted first, like every other."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.label = node.label
        self._connection: BlockingConnection | None = None
        self.durable = "0"

    def greet(self) -> Greeting:
        self.close()
        self._connection = BlockingConnection(self.node.within(CONNECT_TIMEOUT))
        self.durable, said = greeted(self._connection, clock.now() + 2 * CONNECT_TIMEOUT)
        return said

    def ask(self, request: NodeRequest, cluster: str) -> Any:
        assert self._connection is not None, "it is greeted first"
        reply = self._connection.ask(packed(request, cluster, whole=True), clock.now() + CONNECT_TIMEOUT)
        if isinstance(reply, ServerError):
            raise refusal(reply, self.node.server.address)
        return reply

    def install(
        self,
        cluster: str,
        *,
        size: int,
        members: str,
        longest: int,
        floor: int,
        instead: str = "",
        run: str = "",
        opens: bool = True,
    ) -> str:
        """Give the server its record and open its gate; what it said."""
        request = NodeRequest("install", (size, members, longest, floor, self.durable, instead, run, int(opens)))
        reply = self.ask(request, cluster)
        if reply[0] == b"no":
            raise OperatorError(f"{self.label} did not take the record: {reply[1].decode()}; repeat the step")
        return str(reply[0].decode())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


@contextlib.contextmanager
def reached(node: Node) -> Iterator[GreetedServer]:
    """A server that the step cannot do without."""
    server = GreetedServer(node)
    try:
        yield server
    except TROUBLE as problem:
        raise OperatorError(f"{node.label}: {problem}; repeat the step when it is back") from problem
    finally:
        server.close()


def highest(nodes: Sequence[Node], ask: Callable[[GreetedServer], int | None]) -> list[int]:
    """The numbers that those of the servers gave that could; the others are passed over."""
    found = []
    for node in nodes:
        with contextlib.suppress(OperatorError), reached(node) as server:
            number = ask(server)
            if number is not None:
                found.append(number)
    return found


def open_gates(nodes: Sequence[Node], cluster: str) -> None:
    """All of these have their records: let the cluster serve."""
    for node in nodes:
        with reached(node) as server:
            server.greet()
            server.ask(NodeRequest("open", ()), cluster)


def status(nodes: Sequence[Node]) -> list[NodeStatus]:
    """How each server answers now."""
    found = []
    for node in nodes:
        server = GreetedServer(node)
        try:
            said = server.greet()
            found.append(NodeStatus(node.label, said, durable=server.durable == "1"))
        except TROUBLE as problem:
            found.append(NodeStatus(node.label, None, str(problem)))
        finally:
            server.close()
    return found


def members(nodes: Sequence[Node]) -> str:
    return ",".join(node.label for node in nodes)


def nothing_to_do(why: str, **result: Any) -> Plan:
    return Plan([f"nothing to do: {why}"], lambda: None, result)


def all_there_and_different(found: Sequence[NodeStatus]) -> None:
    """Refuse servers for a new record of which one is missing, or is there under two names."""
    missing = [one for one in found if one.said is None]
    if missing:
        raise OperatorError(
            "every server has to be there when a cluster is set up: "
            + "; ".join(f"{one.label}: {one.problem}" for one in missing)
        )
    runs = Counter(one.said.run for one in found if one.said)
    if any(count > 1 for count in runs.values()):
        raise OperatorError("two of these addresses are the same server; a majority has to be of different servers")


def whole_list(found: Sequence[NodeStatus], nodes: Sequence[Node]) -> None:
    """Refuse a list that is not the cluster's own: a majority of a part is none of the whole."""
    other = next((one for one in found if one.said and not one.names(nodes)), None)
    if other is not None and other.said is not None:
        raise OperatorError(
            f"these are not the servers of the cluster; name exactly its own, as it does: {other.said.members}"
        )
