"""What is said to ZooKeeper and how its answers are read: the names and the data of nodes, parents, a line.

A claim's node is called `<weight>.<capacity>.<claim id>.<sequence>`; the server gives the sequence. A claim that became
lighter (a writer turned reader) has a second node, `=<weight>.<sequence>`, because a node cannot be renamed. So one list of
children says who stands where, and who holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote

from kazoo import exceptions as problems
from kazoo.protocol.serialization import Create, Create2, GetChildren, Sync
from kazoo.security import ACL

from ...core.claim import Claim
from ...errors import BackendUnavailable
from .answers import CUT
from .channel import KazooChannel
from .requests import CreateContainer

LIGHTER: Final = "="
"""How the name of a second node begins; that of a claim begins with a digit, and so stands before it."""
SEQUENCE: Final = 16
"""Bytes that a path takes beside its parent's and its name: a slash, the number that the server gives (11 of them), and a length."""
_WRAP: Final = 1 << 32
KEPT: Final = ".kept"
"""The folder beside the names for what is kept beside their lines; no name is spelled with a dot."""
LATEST: Final = 1e11
"""Later than any time that anybody means, and early enough for every calendar."""


# -- names of nodes --------------------------------------------------------------------------------


class ClaimNode(NamedTuple):
    """One claim in its line."""

    sequence: int
    node: str
    id: str
    weight: int
    capacity: int


def escaped(text: str) -> str:
    """Any text as the name of a node: no slash, no control character, never `.` or `..`."""
    return quote(text, safe="").replace(".", "%2E")


unescaped = unquote
"""The text again."""


def node_name(weight: int, capacity: int, claim_id: str) -> str:
    """What the server appends the sequence number to."""
    return f"{weight}.{capacity}.{escaped(claim_id)}."


def lighter_name(node: str, weight: int) -> str:
    """The second node, which says that the claim of this one weighs less now."""
    return f"{LIGHTER}{weight}.{node.rpartition('.')[2]}"


def path_bytes(claim: Claim, parent: str) -> int:
    """What the paths of a claim's nodes take at most, each with its length in front and its sequence number at the end."""
    size = len(parent.encode()) + SEQUENCE
    nodes = size + len(node_name(claim.weight, claim.capacity, claim.id))
    # What may become lighter then has a second node.
    return nodes if claim.weight == 1 else nodes + size + len(lighter_name(".", claim.weight))


def read_line(children: Iterable[str]) -> list[ClaimNode]:
    """The claims in order of arrival; nodes that are none of ours are passed over."""
    line: list[ClaimNode] = []
    lighter: dict[str, int] = {}
    for node in children:
        try:
            if node.startswith(LIGHTER):
                weight, sequence = node[1:].split(".")
                lighter[sequence] = int(weight)
                continue
            weight, capacity, claim_id, sequence = node.split(".")
            # The server counts in 32 bits and goes on with negative numbers.
            number = int(sequence) % _WRAP
            line.append(ClaimNode(number, node, unescaped(claim_id), int(weight), int(capacity)))
        except ValueError:
            continue
    if lighter:
        line = [
            place._replace(weight=min(place.weight, lighter.get(place.node.rpartition(".")[2], place.weight)))
            for place in line
        ]
    line.sort()
    if len(line) > 1 and line[-1].sequence - line[0].sequence > _WRAP // 2:
        # The count has gone all the way round: the small numbers are the young ones.
        line.sort(key=lambda place: (place.sequence + _WRAP // 2) % _WRAP)
    return line


# -- data of nodes ---------------------------------------------------------------------------------


class NodeData(NamedTuple):
    """What a node's data says: for people, nothing is decided by it."""

    owner: str
    kind: str
    ttl: float
    since: float
    meta: Mapping[str, Any] | None
    granted: float | None = None
    """When it began to hold, if it waited before and its client has said so by now."""


NOTHING: Final = NodeData("?", "?", 0.0, 0.0, None)


def written(claim: Claim, granted: float | None = None) -> bytes:
    """The data of a claim's node."""
    meta = json.loads(claim.meta) if claim.meta else None
    told = [claim.owner, claim.kind, claim.ttl, claim.since, meta]
    return json.dumps(told if granted is None else [*told, granted]).encode()


def read_data(data: bytes) -> NodeData:
    """What the data says; that of a node that is not ours, or that somebody has changed, says nothing."""
    try:
        read = NodeData(*json.loads(data))
    except (ValueError, TypeError, RecursionError):
        return NOTHING
    texts, times = (read.owner, read.kind), (read.ttl, read.since, read.granted or 0.0)
    if not all(isinstance(text, str) for text in texts) or not isinstance(read.meta, (dict, type(None))):
        return NOTHING
    return read if all(isinstance(time, (int, float)) and 0 <= time < LATEST for time in times) else NOTHING


# -- answers ---------------------------------------------------------------------------------------


class Denied(BackendUnavailable):
    """The ACL says no, and will say so again."""

    permanent = True


def refusal(answer: Exception) -> BackendUnavailable:
    """An answer of ZooKeeper's that says no, as an error of ours."""
    if not isinstance(answer, problems.NoAuthError):
        return BackendUnavailable(f"ZooKeeper answered {type(answer).__name__}: {answer}")
    return Denied("ZooKeeper says no: the credentials do not fit the ACL of Lockline's nodes, or of the chroot")


def checked(*answers: Any) -> Any:
    """The last answer; what is an error that nobody expects comes out as ours."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise refusal(answer) from answer
    return answers[-1]


def is_cut(answers: Iterable[Any]) -> bool:
    """Whether one of these is missing, so that nobody knows whether the request was applied."""
    return any(isinstance(answer, CUT) for answer in answers)


# -- parents and lines -----------------------------------------------------------------------------


class LineCommands:
    """The folder with one parent for each name."""

    def __init__(self, channel: KazooChannel, root: str, acl: Sequence[ACL]) -> None:
        self.root = root
        self.acl = acl
        self._channel = channel

    def parent(self, name: str) -> str:
        """The node under which the claims on this name stand."""
        return f"{self.root}/{escaped(name)}"

    def create(self, claim: Claim, parent: str) -> Create2:
        """The request that makes a claim's node: ephemeral and numbered."""
        name = node_name(claim.weight, claim.capacity, claim.id)
        return Create2(f"{parent}/{name}", written(claim), self.acl, 3)

    def containers(self, parent: str) -> list[Any]:
        """The requests that make this parent, and the folder of all."""
        return [CreateContainer(path, b"", self.acl, 4) for path in (self.root, parent)]

    async def make(self, parent: str, until: float) -> None:
        """The same by itself, with the chroot if that is missing too, and an error if it cannot be done."""
        containers = self.containers(parent)
        answers = await self._channel.ask(*containers, until=until)
        if isinstance(answers[0], problems.UnimplementedError):
            raise BackendUnavailable("this ZooKeeper knows no container nodes; Lockline needs ZooKeeper 3.5.3 or later")
        if isinstance(answers[0], problems.NoNodeError):
            parts = self.root.split("/")[1:-1]
            folders = ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]
            answers = await self._channel.ask(*(Create(path, b"", self.acl, 0) for path in folders), until=until)
            answers += await self._channel.ask(*containers, until=until)
        for answer in answers:
            # Whoever made it first, and whatever went again meanwhile: only a refusal is an error.
            if not isinstance(answer, (*CUT, problems.NodeExistsError, problems.NoNodeError)):
                checked(answer)

    async def children(
        self, parent: str, until: float, *, ttl: float | None = None, insist: bool = True, tried: bool = False
    ) -> list[str]:
        """Who stands under this parent, as the leader knows it now; nobody where the parent is gone."""
        while True:
            await self._channel.connected(ttl, until, insist=insist, tried=tried)
            answers = await self._channel.ask(Sync(parent), GetChildren(parent, None), until=until)
            if isinstance(answers[1], problems.NoNodeError) and not is_cut(answers):
                return []
            if not is_cut(answers):
                return checked(answers[1])  # type: ignore[no-any-return]

    async def line(
        self, name: str, until: float, *, ttl: float | None = None, insist: bool = True, tried: bool = False
    ) -> list[ClaimNode]:
        """The line as the leader knows it now."""
        return read_line(await self.children(self.parent(name), until, ttl=ttl, insist=insist, tried=tried))
