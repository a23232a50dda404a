"""The operator's steps: set a cluster up, look at it, replace a server that lost its memory, change the set of servers.

Each says what it will do before it does it, and can be repeated. All of them keep one thing true: a server only ever counts
from a floor that is above every number a grant can have used.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.clock import DRIFT
from ...errors import LocklineError, QuorumNotReached
from .blocking import _ask, _prepare
from .membership import Greeting, greeting
from .nodes import TROUBLE, Node
from .requests import Request, command
from .rules import majority

LONGEST = 60.0
"""The default for the longest ttl that a cluster grants: also how long a server that comes back has to wait."""
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
        """serving, refusing, retired, empty, forgot or unreachable."""
        if self.said is None:
            return "unreachable"
        if self.said.state != "known":
            return self.said.state
        if self.said.serves:
            return "serving"
        return self.said.gate.partition(" ")[0]

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


class Server:
    """A connection for the operator; greeted first, like every other."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.label = node.label
        self._connection = node.connection(CONNECT_TIMEOUT)
        self.durable = "0"

    def greet(self) -> Greeting:
        self._connection.disconnect()
        self._connection.connect()
        self.durable = _prepare(self._connection)
        return greeting(self.ask(Request("greet", (self.durable,)), ""))

    def ask(self, request: Request, cluster: str) -> Any:
        return _ask(self._connection, *command(request, cluster, whole=True))

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
        request = Request("install", (size, members, longest, floor, self.durable, instead, run, int(opens)))
        reply = self.ask(request, cluster)
        if reply[0] == b"no":
            raise OperatorError(f"{self.label} did not take the record: {reply[1].decode()}")
        return str(reply[0].decode())

    def close(self) -> None:
        self._connection.disconnect()


def status(nodes: Sequence[Node]) -> list[NodeStatus]:
    """How each server answers now."""
    found = []
    for node in nodes:
        server = Server(node)
        try:
            said = server.greet()
            found.append(NodeStatus(node.label, said, durable=server.durable == "1"))
        except TROUBLE as problem:
            found.append(NodeStatus(node.label, None, str(problem)))
        finally:
            server.close()
    return found


def _members(nodes: Sequence[Node]) -> str:
    return ",".join(node.label for node in nodes)


def _the_cluster(found: Sequence[NodeStatus], size: int) -> str:
    """The one cluster that a majority of these servers serve now."""
    serving = Counter(one.said.cluster for one in found if one.said and one.state == "serving")
    cluster, count = serving.most_common(1)[0] if serving else ("", 0)
    if count < majority(size):
        raise QuorumNotReached(
            "no majority of these servers serves one cluster; if their memory is lost, `lockline redlock init --floor`",
            nodes={one.label: one.problem or one.state for one in found},
        )
    return cluster


def init(nodes: Sequence[Node], *, longest: float = LONGEST, floor: int | None = None) -> Plan:
    """Make these servers a cluster. Only empty ones are touched; with a floor, also a cluster that lost its majority.

    Safe to repeat: what belongs to the cluster already is left alone.
    """
    found = status(nodes)
    unreachable = [one for one in found if one.said is None]
    if unreachable:
        raise OperatorError(
            "every server has to be there when a cluster is set up: "
            + "; ".join(f"{one.label}: {one.problem}" for one in unreachable)
        )
    runs = Counter(one.said.run for one in found if one.said)
    if any(count > 1 for count in runs.values()):
        raise OperatorError("two of these addresses are the same server; a majority has to be of different servers")
    members = _members(nodes)
    clusters = {one.said.cluster for one in found if one.said and one.said.state == "known"}
    empty = [one for one in found if one.state in ("empty", "forgot")]
    if len(clusters) > 1:
        raise OperatorError("these servers belong to different clusters already; `lockline redlock status` shows which")
    cluster = next(iter(clusters)) if clusters else secrets.token_hex(8)
    size = len(nodes)
    if clusters:
        record = next(one.said for one in found if one.said and one.said.state == "known")
        assert record is not None
        if record.members != members:
            raise OperatorError(
                f"they are a cluster of {record.members} already; `lockline redlock resize` changes that"
            )
        if not empty and not any(one.state == "preparing" for one in found):
            return Plan([f"nothing to do: cluster {cluster} of {size} is set up"], lambda: None, {"cluster": cluster})
        # An open gate means that grants may have been made: then an empty server has lost something.
        if floor is None and empty and any(one.state != "preparing" for one in found if one not in empty):
            raise OperatorError(
                f"{', '.join(one.label for one in empty)}: lost memory, not new; `lockline redlock replace` keeps the tokens rising "
                "(or, if a majority is lost, `init --floor N` with N above every token ever used)"
            )
        longest = record.longest / 1000
    start = floor or 0
    highest = max((one.said.highest for one in found if one.said), default=0)
    if floor is not None and floor <= highest:
        raise OperatorError(f"the floor has to be above {highest}, the highest number that is still remembered here")

    def act() -> None:
        for node in nodes:
            server = Server(node)
            try:
                said = server.greet()
                if said.state != "known":
                    server.install(
                        cluster,
                        size=size,
                        members=members,
                        longest=round(longest * 1000),
                        floor=max(start, highest),
                        opens=False,
                    )
            finally:
                server.close()
        for node in nodes:
            server = Server(node)
            try:
                server.greet()
                server.ask(Request("open", ()), cluster)
            finally:
                server.close()

    sentences = [
        f"make {one.label} a server of cluster {cluster} ({size} servers, longest ttl {longest:g} s)" for one in empty
    ]
    sentences.append("then open the gates of all")
    if floor is not None:
        sentences.append(f"count from {floor} there: no token at or below it may be in use")
    return Plan(sentences, act, {"cluster": cluster})


def replace(nodes: Sequence[Node], label: str, *, sleep: Callable[[float], None] = time.sleep) -> Plan:
    """Let a server that lost its memory (or a new machine at its address) back in.

    It stays out for one longest ttl, so that no vote from before its death is still being counted, and only then reads from a
    majority of the *others* how far the numbers have come. The other order would miss votes that are under way.
    """
    at = next((at for at, node in enumerate(nodes) if node.label == label), None)
    if at is None:
        raise OperatorError(f"{label} is not in the list of servers: {_members(nodes)}")
    others = [node for node in nodes if node.label != label]
    found = status(others)
    cluster = _the_cluster(found, len(nodes))
    record = next(one.said for one in found if one.said and one.said.cluster == cluster)
    assert record is not None
    if label not in record.members.split(","):
        raise OperatorError(
            f"{label} is not a member of the cluster ({record.members}); `lockline redlock resize` changes that"
        )
    mine = status([nodes[at]])[0]
    if mine.said is None:
        raise OperatorError(f"{label} cannot be reached: {mine.problem}")
    if mine.said.cluster == cluster and mine.state in ("serving", "refusing"):
        return Plan([f"nothing to do: {label} is {mine.state}"], lambda: None, {"state": mine.state})
    wait = record.longest / 1000 * (1 + 2 * DRIFT) + 0.01

    def act() -> None:
        server = Server(nodes[at])
        try:
            run = server.greet().run
            sleep(wait)
            floors = []
            for node in others:
                other = Server(node)
                try:
                    if other.greet().cluster == cluster:
                        reply = other.ask(Request("highest", ()), cluster)
                        if reply[0] == b"yes":
                            floors.append(int(reply[1]))
                except TROUBLE:
                    continue
                finally:
                    other.close()
            if len(floors) < majority(len(nodes)):
                raise OperatorError(f"only {len(floors)} of the other servers are ready; nothing was changed")
            # A restart in the meantime begins the wait anew: the run id has to be the same.
            server.install(
                cluster, size=len(nodes), members=record.members, longest=record.longest, floor=max(floors), run=run
            )
        finally:
            server.close()

    return Plan(
        [
            f"keep {label} out for {wait:.1f} s, until no vote from before is being counted",
            f"read the highest number from a majority of the other {len(others)} servers",
            f"let {label} in, counting from there",
        ],
        act,
        {"cluster": cluster, "state": "serving"},
    )


def resize(old: Sequence[Node], new: Sequence[Node], *, sleep: Callable[[float], None] = time.sleep) -> Plan:
    """Move the cluster to another set of servers. Locks cannot be taken meanwhile, and leases held now end.

    The old set is retired first: as long as any majority of it served, two clients could have two majorities.
    """
    before = status(old)
    members = _members(new)
    records = [one.said for one in before if one.said and one.said.state == "known"]
    retired = Counter(said.cluster for said in records if said.gate.startswith("retired "))
    serving = Counter(said.cluster for said in records if not said.gate.startswith("retired "))
    after = status(new)
    done = Counter(
        one.said.cluster for one in after if one.said and one.state == "serving" and one.said.members == members
    )
    if done and done.most_common(1)[0][1] == len(new) and _members(old) != members:
        return Plan([f"nothing to do: {members} is set up"], lambda: None, {"cluster": done.most_common(1)[0][0]})
    counts = retired + serving
    cluster, count = counts.most_common(1)[0] if counts else ("", 0)
    if count < majority(len(old)):
        raise QuorumNotReached(
            "no majority of the old servers can be retired",
            nodes={one.label: one.problem or one.state for one in before},
        )
    missing = [one for one in after if one.said is None]
    if missing:
        raise OperatorError("every new server has to be there: " + ", ".join(one.label for one in missing))
    record = next(said for said in records if said.cluster == cluster)
    wait = record.longest / 1000 * (1 + 2 * DRIFT) + 0.01
    # From the old id and the new list: a repeated step goes on with the same new cluster.
    successor = hashlib.sha256(f"{cluster} {members}".encode()).hexdigest()[:16]

    def act() -> None:
        floors = []
        for node in old:
            server = Server(node)
            try:
                server.greet()
                reply = server.ask(Request("retire", ()), cluster)
                if reply[0] == b"yes":
                    floors.append(int(reply[1]))
            except TROUBLE:
                continue
            finally:
                server.close()
        if len(floors) < majority(len(old)):
            raise OperatorError(f"only {len(floors)} of the old servers could be retired; repeat the step")
        sleep(wait)
        for node in new:
            server = Server(node)
            try:
                server.greet()
                server.install(
                    successor,
                    size=len(new),
                    members=members,
                    longest=record.longest,
                    floor=max(floors),
                    instead=cluster,
                )
            finally:
                server.close()

    return Plan(
        [
            f"retire cluster {cluster} on {_members(old)}: no lock can be taken, leases held now end",
            f"wait {wait:.1f} s, until none of them is alive",
            f"set up cluster {successor} on {members}, counting from the highest number of the old one",
            "then give every client the new list",
        ],
        act,
        {"cluster": successor},
    )
