"""Lines as everybody can see them: looking at one, listing them, and the operator's eviction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kazoo import exceptions as problems
from kazoo.protocol.serialization import Delete, Exists, GetData

from ...core.claim import Line, Standing
from ...core.rule import admitted
from ...errors import BackendUnavailable
from .channel import KazooChannel
from .claims import OwnNode
from .commands import KEPT, ClaimNode, LineCommands, checked, is_cut, lighter_name, read_data, unescaped
from .exchange import AT_ONCE


class LineInspection:
    """What one client sees of the lines."""

    def __init__(self, channel: KazooChannel, commands: LineCommands, own: Mapping[str, OwnNode]) -> None:
        self._channel = channel
        self._commands = commands
        self._own = own

    async def look(self, name: str, now: float, until: float) -> Line:
        """The line, with what its nodes say."""
        parent = self._commands.parent(name)
        while True:
            line = await self._commands.line(name, until, insist=False)
            answers = await self._many([GetData(f"{parent}/{place.node}", None) for place in line], until)
            if is_cut(answers):
                continue
            # Who has left between the two looks is not shown; the others are as they stood.
            there = [
                (place, checked(answer))
                for place, answer in zip(line, answers, strict=True)
                if not isinstance(answer, problems.NoNodeError)
            ]
            holders = admitted([place for place, _ in there])
            return Line(
                name,
                tuple(self._standing(place, told, at < holders, now) for at, (place, told) in enumerate(there)),
            )

    def _standing(self, place: ClaimNode, told: tuple[bytes, Any], holds: bool, now: float) -> Standing:
        data, stat = told
        seen = read_data(data)
        own = self._own.get(place.id)
        # Of another client's claim only its ttl is known; of ours, what is left.
        remaining = seen.ttl if own is None else max(0.0, own.expires - now)
        granted = seen.granted if own is None else own.granted
        return Standing(
            id=place.id, owner=seen.owner, kind=seen.kind, token=stat.czxid, holds=holds, weight=place.weight,
            capacity=place.capacity, ttl=seen.ttl, remaining=remaining, enqueued_at=seen.since,
            granted_at=max(seen.since, granted or 0.0) if holds else None, meta=seen.meta,
        )  # fmt: skip

    async def names(self, prefix: str, until: float) -> list[str]:
        """The names that somebody stands in line for."""
        root = self._commands.root
        while True:
            children = await self._commands.children(root, until, insist=False)
            names = {child: unescaped(child) for child in children if child != KEPT}
            wanted = [child for child, name in names.items() if name.startswith(prefix)]
            stats = await self._many([Exists(f"{root}/{child}", None) for child in wanted], until)
            if not is_cut(stats):
                # An empty parent waits to be removed by the server.
                return sorted(
                    names[child] for child, stat in zip(wanted, stats, strict=True) if stat and stat.numChildren
                )

    async def evict(self, name: str, until: float, token: int | None) -> list[str]:
        """Remove the holders, or of them the one with this token; the ids of those that were removed.

        Between the look and the removal nobody can take a victim's place: a node's path is never used again, and whoever
        holds goes on to hold until its node is gone.
        """
        parent = self._commands.parent(name)
        line = await self._commands.line(name, until, insist=False)
        victims = line[: admitted(line)]
        if token is not None:
            stats = await self._many([Exists(f"{parent}/{victim.node}", None) for victim in victims], until)
            _check_answered(name, stats)
            victims = [
                victim
                for victim, stat in zip(victims, stats, strict=True)
                if stat is not None and checked(stat).czxid == token
            ]
        answers = await self._many([Delete(f"{parent}/{victim.node}", -1) for victim in victims], until)
        for victim in victims:
            if not victim.node.startswith(f"{victim.weight}."):
                self._channel.post(Delete(f"{parent}/{lighter_name(victim.node, victim.weight)}", -1))
        _check_answered(name, answers)
        checked(*(answer for answer in answers if not isinstance(answer, problems.NoNodeError)), None)
        return [victim.id for victim, answer in zip(victims, answers, strict=True) if answer is True]

    async def _many(self, requests: Sequence[Any], until: float) -> list[Any]:
        answers: list[Any] = []
        for first in range(0, len(requests), AT_ONCE):
            await self._channel.connected(None, until, insist=False, tried=bool(answers))
            answers += await self._channel.ask(*requests[first : first + AT_ONCE], until=until)
        return answers


def _check_answered(name: str, answers: Sequence[Any]) -> None:
    if is_cut(answers):
        raise BackendUnavailable(f"no answer to the eviction from {name!r}; evict again")
