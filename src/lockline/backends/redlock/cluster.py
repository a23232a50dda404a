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

from ...errors import ConfigError, QuorumNotReached
from ...runtime.clock import DRIFT
from .commands import NodeRequest
from .rules import majority
from .steps import (
    GreetedServer,
    NodeStatus,
    OperatorError,
    Plan,
    all_there_and_different,
    highest,
    members,
    nothing_to_do,
    open_gates,
    reached,
    status,
    whole_list,
)
from .target import Node

LONGEST = 60.0
"""The default for the longest ttl that a cluster grants: also how long a server that comes back has to wait."""


def _labels(found: Sequence[NodeStatus]) -> str:
    return ", ".join(one.label for one in found)


def _known(found: Sequence[NodeStatus]) -> list[NodeStatus]:
    return [one for one in found if one.said and one.said.state == "known"]


def _wait(longest: int) -> float:
    """Until no lease from before is alive and no vote is under way, whatever the clocks' speeds."""
    return longest / 1000 * (1 + 2 * DRIFT) + 0.01


def init(
    nodes: Sequence[Node],
    *,
    longest: float | None = None,
    floor: int | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Plan:
    """Make these servers a cluster. Only empty ones are touched; with a floor, also a cluster that lost its majority.

    A floor says that memory was lost: then the empty ones stay out for one longest ttl, because leases from before are still
    trusted by their holders. Safe to repeat: what belongs to the cluster already is left alone.
    """
    milliseconds = round((LONGEST if longest is None else longest) * 1000)
    if milliseconds < 1:
        raise ConfigError(f"the longest ttl is at least a millisecond, not {longest} s")
    found = status(nodes)
    all_there_and_different(found)
    known = _known(found)
    empty = [one for one in found if one not in known]
    names, size, cluster = members(nodes), len(nodes), secrets.token_hex(8)
    if len({one.cluster for one in known}) > 1:
        raise OperatorError("these servers belong to different clusters already; `lockline redlock status` shows which")
    if known:
        record = known[0].said
        assert record is not None
        cluster, names = record.cluster, record.members
        if not all(one.names(nodes) for one in known):
            raise OperatorError(f"they are a cluster of {names} already; `lockline redlock resize` changes that")
        if retired := [one for one in known if one.state == "retired"]:
            raise OperatorError(
                f"{_labels(retired)}: retired, cluster {cluster} moves or has moved to other servers; name those, "
                "or repeat the `lockline redlock resize` that was not finished"
            )
        if longest is not None and milliseconds != record.longest:
            raise OperatorError(
                f"cluster {cluster} was set up for ttls of up to {record.longest / 1000:g} s, and that stays; "
                "only a new cluster can have another --max-ttl"
            )
        milliseconds = record.longest
        if not empty and not any(one.state == "preparing" for one in found):
            return nothing_to_do(f"cluster {cluster} of {size} is set up", cluster=cluster)
        # An open gate means that grants may have been made: then an empty server has lost something.
        if floor is None and empty and any(one.opened for one in known):
            raise OperatorError(
                f"{_labels(empty)}: lost memory, not new; `lockline redlock replace` keeps the tokens rising "
                "(or, if a majority is lost, `init --floor N` with N above every token ever used)"
            )
    remembered = max((one.said.highest for one in found if one.said), default=0)
    if floor is not None and floor <= remembered:
        raise OperatorError(f"the floor has to be above {remembered}, the highest number that is still remembered here")

    wait = _wait(milliseconds) if floor is not None and empty else 0.0

    def act() -> None:
        known_now = remembered
        if wait:
            sleep(wait)
            known_now = max((one.said.highest for one in status(nodes) if one.said), default=0)
        for node in nodes:
            with reached(node) as server:
                if server.greet().state != "known":
                    server.install(
                        cluster,
                        size=size,
                        members=names,
                        longest=milliseconds,
                        floor=max(floor or 0, remembered, known_now),
                        opens=False,
                    )
        open_gates(nodes, cluster)

    sentences = [
        f"make {one.label} a server of cluster {cluster} ({size} servers, longest ttl {milliseconds / 1000:g} s)"
        for one in empty
    ]
    if wait:
        sentences.insert(0, f"keep them shut for {wait:.1f} s, until no lease from before is alive")
    sentences.append("then open the gates of all")
    if floor is not None:
        sentences.append(f"count from {floor} there: no token at or below it may be in use")
    return Plan(sentences, act, {"cluster": cluster})


def _the_cluster(found: Sequence[NodeStatus], size: int) -> str:
    """The one cluster that a majority of these servers serve now."""
    serving = Counter(one.cluster for one in found if one.state == "serving")
    cluster, count = serving.most_common(1)[0] if serving else ("", 0)
    if count < majority(size):
        if sum(one.opened for one in found) >= majority(size):
            cure = "some refuse for a while after their restart: repeat the step then"
        else:
            cure = "if their memory is lost, `lockline redlock init --floor`"
        raise QuorumNotReached(
            f"no majority of these servers serves one cluster; {cure}",
            nodes={one.label: one.problem or one.state for one in found},
        )
    return cluster


def replace(nodes: Sequence[Node], label: str, *, sleep: Callable[[float], None] = time.sleep) -> Plan:
    """Let a server that lost its memory (or a new machine at its address) back in.

    It stays out for one longest ttl, so that no vote from before its death is still being counted, and only then reads from a
    majority of the *others* how far the numbers have come. The other order would miss votes that are under way.
    """
    at = next((at for at, node in enumerate(nodes) if node.label == label), None)
    if at is None:
        raise OperatorError(f"{label} is not in the list of servers: {members(nodes)}")
    others = [node for node in nodes if node.label != label]
    found = status(others)
    cluster = _the_cluster(found, len(nodes))
    serving = [one for one in _known(found) if one.cluster == cluster]
    whole_list(serving, nodes)
    record = serving[0].said
    assert record is not None
    (mine,) = status([nodes[at]])
    if mine.said is None:
        raise OperatorError(f"{label} cannot be reached: {mine.problem}")
    if mine.cluster not in ("", cluster):
        raise OperatorError(f"{label} belongs to cluster {mine.cluster}; wipe it first, if nobody needs that one")
    if mine.opened:
        return nothing_to_do(f"{label} is {mine.state}", state=mine.state)
    if mine.state == "preparing":
        raise OperatorError(f"{label} was not finished being set up; `lockline redlock init` opens its gate")
    wait = _wait(record.longest)

    def read(server: GreetedServer) -> int | None:
        if server.greet().cluster != cluster:
            return None
        reply = server.ask(NodeRequest("highest", ()), cluster)
        return int(reply[1]) if reply[0] == b"yes" else None

    def act() -> None:
        with reached(nodes[at]) as server:
            run = server.greet().run
            sleep(wait)
            floors = highest(others, read)
            if len(floors) < majority(len(nodes)):
                raise OperatorError(f"only {len(floors)} of the other servers are ready; nothing was changed")
            # On a new connection, because a server may close one that is idle for so long. A restart in the meantime
            # begins the wait anew: the run id has to be the same.
            server.greet()
            server.install(
                cluster, size=len(nodes), members=record.members, longest=record.longest, floor=max(floors), run=run
            )

    return Plan(
        [
            f"keep {label} out for {wait:.1f} s, until no vote from before is being counted",
            f"read the highest number from a majority of the other {len(others)} servers",
            f"let {label} in, counting from there",
        ],
        act,
        {"cluster": cluster, "state": "serving"},
    )


def _successor(cluster: str, new: Sequence[Node]) -> str:
    """From the old id and the new list: a repeated step goes on with the same new cluster."""
    labels = ",".join(sorted(node.label for node in new))
    return hashlib.sha256(f"{cluster} {labels}".encode()).hexdigest()[:16]


def _way(
    before: Sequence[NodeStatus], after: Sequence[NodeStatus], old: Sequence[Node], new: Sequence[Node]
) -> tuple[str, str]:
    """From which cluster to which. The first is empty where the move has begun and no server is left that knows it."""
    known = _known(before)
    begun = {one.cluster for one in _known([*before, *after]) if one.names(new)}
    for one in known:
        if one.names(old) and _successor(one.cluster, new) in begun:
            return one.cluster, _successor(one.cluster, new)
    counts = Counter(one.cluster for one in known)
    cluster, count = counts.most_common(1)[0] if counts else ("", 0)
    taken = count >= majority(len(old)) and count == len(known) and all(one.names(new) for one in known)
    # Onto the same servers, only a gate that is not open yet tells a move that has begun from one that has not.
    if taken and (not known[0].names(old) or any(one.state == "preparing" for one in after)):
        return "", cluster
    whole_list(known, old)
    if count < majority(len(old)):
        raise QuorumNotReached(
            "no majority of the old servers can be retired",
            nodes={one.label: one.problem or one.state for one in before},
        )
    return cluster, _successor(cluster, new)


def resize(old: Sequence[Node], new: Sequence[Node], *, sleep: Callable[[float], None] = time.sleep) -> Plan:
    """Move the cluster to another set of servers. Locks cannot be taken meanwhile, and leases held now end.

    The old set is retired first: as long as any majority of it served, two clients could have two majorities. The gates of the
    new set stay shut until every server has its record, so that a step which was interrupted can tell a server that is
    still empty from one that has lost its memory.
    """
    before, after = status(old), status(new)
    all_there_and_different(after)
    cluster, successor = _way(before, after, old, new)
    if strangers := [one for one in after if one.cluster not in ("", cluster, successor)]:
        raise OperatorError(
            f"{_labels(strangers)}: belongs to another cluster already; wipe it first, if nobody needs that one"
        )
    if any(one.opened and one.cluster == successor for one in after):
        return _finish(new, after, successor)
    record = next(one.said for one in _known([*before, *after]) if one.cluster in (cluster, successor))
    assert record is not None
    longest = record.longest
    wait = _wait(longest)

    def retire(server: GreetedServer) -> int | None:
        said = server.greet()
        if said.state == "known" and said.cluster == successor:
            # Taken over already, and so at least at the floor that was read when a majority had been retired.
            return said.highest
        reply = server.ask(NodeRequest("retire", ()), cluster)
        return int(reply[1]) if reply[0] == b"yes" else None

    def act() -> None:
        floors = highest(old, retire)
        if len(floors) < majority(len(old)):
            raise OperatorError(f"only {len(floors)} of the old servers could be retired; repeat the step")
        sleep(wait)
        for node in new:
            with reached(node) as server:
                server.greet()
                server.install(
                    successor,
                    size=len(new),
                    members=members(new),
                    longest=longest,
                    floor=max(floors),
                    instead=cluster,
                    opens=False,
                )
        open_gates(new, successor)

    if cluster:
        first = f"retire cluster {cluster} on {members(old)}: no lock can be taken, leases held now end"
    else:
        first = f"go on: the cluster on {members(old)} is retired already"
    return Plan(
        [
            first,
            f"wait {wait:.1f} s, until none of them is alive",
            f"set up cluster {successor} on {members(new)}, counting from the highest number of the old one",
            "then give every client the new list",
        ],
        act,
        {"cluster": successor},
    )


def _finish(new: Sequence[Node], after: Sequence[NodeStatus], successor: str) -> Plan:
    """Every new server had its record when the first gate was opened: at most gates are left to do."""
    waiting = [node for node, one in zip(new, after, strict=True) if one.state == "preparing"]
    if waiting:
        sentences = [f"go on: open the gates of {members(waiting)}", "then give every client the new list"]
        return Plan(sentences, lambda: open_gates(waiting, successor), {"cluster": successor})
    if lost := [one for one in after if one.cluster != successor or one.state == "forgot"]:
        raise OperatorError(f"{_labels(lost)}: lost memory, not new; wipe it, and `lockline redlock replace`")
    return nothing_to_do(f"{members(new)} is set up", cluster=successor)


__all__ = ["LONGEST", "GreetedServer", "NodeStatus", "OperatorError", "Plan", "init", "replace", "resize", "status"]
