"""Lines as everybody can see them: reading one, listing them, and the operator's eviction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo import exceptions as problems
from kazoo.protocol.serialization import Create, Delete, Exists, GetChildren, GetData, Sync
from kazoo.security import ACL

from ...core.claim import Line, Standing
from ...errors import BackendUnavailable
from ...runtime import Runtime
from .batch import CUT
from .line import Place, admitted, escaped, lighter_name, read_line, unescaped
from .node import Node, read_data
from .tap import AT_ONCE
from .wire import CreateContainer, Wire


class Lines:
    """The folder with one parent for each name."""

    def __init__(self, wire: Wire, runtime: Runtime, root: str, acl: Sequence[ACL], nodes: dict[str, Node]) -> None:
        self._wire = wire
        self._runtime = runtime
        self._root = root
        self._acl = acl
        self._nodes = nodes

    def parent(self, name: str) -> str:
        """The node under which the claims on this name stand."""
        return f"{self._root}/{escaped(name)}"

    def containers(self, parent: str) -> list[Any]:
        """The requests that make this parent, and the folder of all."""
        return [CreateContainer(path, b"", self._acl, 4) for path in (self._root, parent)]

    async def make(self, parent: str, until: float) -> None:
        """The same by itself, with the chroot if that is missing too, and an error if it cannot be done."""
        containers = self.containers(parent)
        answers = await self._wire.ask(*containers, until=until)
        if isinstance(answers[0], problems.UnimplementedError):
            raise BackendUnavailable("this ZooKeeper knows no container nodes; Lockline needs ZooKeeper 3.5.3 or later")
        if isinstance(answers[0], problems.NoNodeError):
            parts = self._root.split("/")[1:-1]
            folders = ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]
            made = await self._wire.ask(*(Create(path, b"", self._acl, 0) for path in folders), until=until)
            _made(made)
            answers = await self._wire.ask(*containers, until=until)
        _made(answers)

    async def read(self, name: str, until: float, *, ttl: float | None = None, insist: bool = True) -> list[Place]:
        """The line as the leader knows it now."""
        parent = self.parent(name)
        while True:
            await self._wire.connected(ttl, until, insist=insist)
            synced, children = await self._wire.ask(Sync(parent), GetChildren(parent, None), until=until)
            if isinstance(synced, CUT) or isinstance(children, CUT):
                continue
            if isinstance(children, problems.NoNodeError):
                return []
            return read_line(checked(children))

    async def look(self, name: str, until: float) -> Line:
        """The line, with what its nodes say."""
        parent = self.parent(name)
        while True:
            line = await self.read(name, until, insist=False)
            answers = await self._many([GetData(f"{parent}/{place.node}", None) for place in line], until)
            if any(isinstance(answer, CUT) for answer in answers):
                continue
            # Who has left between the two looks is not shown; the others are as they stood.
            there = [
                (place, checked(answer))
                for place, answer in zip(line, answers, strict=True)
                if not isinstance(answer, problems.NoNodeError)
            ]
            holders = admitted([place for place, _ in there])
            return Line(name, tuple(self._seen(place, told, at < holders) for at, (place, told) in enumerate(there)))

    def _seen(self, place: Place, told: tuple[bytes, Any], holds: bool) -> Standing:
        data, stat = told
        seen = read_data(data)
        node = self._nodes.get(place.id)
        # Of another client's claim only its ttl is known; of ours, what is left.
        remaining = seen.ttl if node is None else max(0.0, node.expires - self._runtime.now())
        return Standing(
            id=place.id, owner=seen.owner, kind=seen.kind, token=stat.czxid, holds=holds, weight=place.weight,
            capacity=place.capacity, ttl=seen.ttl, remaining=remaining, since=seen.since, meta=seen.meta,
        )  # fmt: skip

    async def names(self, prefix: str, until: float) -> list[str]:
        """The names that somebody stands in line for."""
        while True:
            await self._wire.connected(None, until, insist=False)
            synced, children = await self._wire.ask(Sync(self._root), GetChildren(self._root, None), until=until)
            if isinstance(synced, CUT) or isinstance(children, CUT):
                continue
            if isinstance(children, problems.NoNodeError):
                return []
            names = {child: unescaped(child) for child in checked(children)}
            wanted = [child for child, name in names.items() if name.startswith(prefix)]
            stats = await self._many([Exists(f"{self._root}/{child}", None) for child in wanted], until)
            if not any(isinstance(stat, CUT) for stat in stats):
                # An empty parent waits to be removed by the server.
                return sorted(
                    names[child] for child, stat in zip(wanted, stats, strict=True) if stat and stat.numChildren
                )

    async def evict(self, name: str, until: float, token: int | None) -> list[str]:
        """Remove the holders, or of them the one with this token; the ids of those that were removed.

        Between the look and the removal nobody can take a victim's place: a node's path is never used again, and whoever
        holds goes on to hold until its node is gone.
        """
        parent = self.parent(name)
        line = await self.read(name, until, insist=False)
        victims = line[: admitted(line)]
        if token is not None:
            stats = await self._many([Exists(f"{parent}/{victim.node}", None) for victim in victims], until)
            _all_answered(name, stats)
            victims = [
                victim
                for victim, stat in zip(victims, stats, strict=True)
                if stat is not None and checked(stat).czxid == token
            ]
        answers = await self._many([Delete(f"{parent}/{victim.node}", -1) for victim in victims], until)
        for victim in victims:
            if not victim.node.startswith(f"{victim.weight}."):
                self._wire.post(Delete(f"{parent}/{lighter_name(victim, victim.weight)}", -1))
        _all_answered(name, answers)
        checked(*(answer for answer in answers if not isinstance(answer, problems.NoNodeError)), None)
        return [victim.id for victim, answer in zip(victims, answers, strict=True) if answer is True]

    async def _many(self, requests: Sequence[Any], until: float) -> list[Any]:
        answers: list[Any] = []
        for first in range(0, len(requests), AT_ONCE):
            try:
                await self._wire.connected(None, until, insist=False)
            except BackendUnavailable as problem:
                problem.unsent = problem.unsent and not answers
                raise
            answers += await self._wire.ask(*requests[first : first + AT_ONCE], until=until)
        return answers


def _all_answered(name: str, answers: Sequence[Any]) -> None:
    if any(isinstance(answer, CUT) for answer in answers):
        raise BackendUnavailable(f"no answer to the eviction from {name!r}; evict again")


def _made(answers: Sequence[Any]) -> None:
    """Whoever made it first, and whatever went again meanwhile: only a refusal is an error."""
    for answer in answers:
        if not isinstance(answer, (*CUT, problems.NodeExistsError, problems.NoNodeError)):
            checked(answer)


def checked(*answers: Any) -> Any:
    """The last answer; what is an error that nobody expects comes out as ours."""
    for answer in answers:
        if isinstance(answer, Exception):
            raise refusal(answer) from answer
    return answers[-1]


class Denied(BackendUnavailable):
    """The ACL says no, and will say so again."""

    permanent = True


def refusal(answer: Exception) -> BackendUnavailable:
    """An answer of ZooKeeper's that says no, as an error of ours."""
    if not isinstance(answer, problems.NoAuthError):
        return BackendUnavailable(f"ZooKeeper answered {type(answer).__name__}: {answer}")
    return Denied("ZooKeeper says no: the credentials do not fit the ACL of Lockline's nodes, or of the chroot")
