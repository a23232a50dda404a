"""Taking one's own claims out of their lines: one in one request, many in a few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo import exceptions as problems
from kazoo.protocol.serialization import Delete, Transaction

from ...errors import BackendUnavailable
from .batch import CUT
from .lines import Lines, checked
from .node import Node
from .tap import AT_ONCE
from .wire import Wire


class Removals:
    """Removes nodes of this client, and no others."""

    def __init__(self, wire: Wire, lines: Lines) -> None:
        self._wire = wire
        self._lines = lines

    async def remove(self, node: Node, until: float) -> bool:
        """Whether it stood there up to now."""
        # What a renewal that is still under way finds from here on may be our own doing.
        stood, tried = node.end is None, False
        while node.path is not None:
            if node.session is not None and node.session.ended:
                return False
            await self._connected(until, tried=tried)
            answers = await self._wire.ask(*(Delete(path, -1) for path in node.paths), until=until, proof=True)
            answer = next((answer for answer in answers if isinstance(answer, CUT)), answers[-1])
            if not isinstance(answer, CUT):
                # A delete of ours whose reply was lost may have done it.
                return stood and _was_there(answer, tried)
            tried = True
        return await self._remove_by_id(node, until)

    async def _remove_by_id(self, node: Node, until: float) -> bool:
        """A claim whose create has no answer: on this session the list comes after it, on another one after a sync."""
        there = False
        for place in await self._lines.read(node.claim.name, until):
            if place.id == node.claim.id:
                (answer,) = await self._wire.ask(Delete(f"{node.parent}/{place.node}", -1), until=until)
                if isinstance(answer, CUT):
                    return await self._remove_by_id(node, until)
                if not isinstance(answer, problems.NoNodeError):
                    there = bool(checked(answer))
        return there

    async def remove_all(self, nodes: Sequence[Node], until: float) -> list[bool]:
        """The same for many: a transaction for each `AT_ONCE` of them, and all transactions on their way at once."""
        await self._find([node for node in nodes if node.path is None], until)
        there = dict.fromkeys(nodes, False)
        stood = {node: node.end is None for node in nodes}
        left = [
            node for node in nodes if node.path is not None and not (node.session is not None and node.session.ended)
        ]
        tried = False
        while left:
            await self._connected(until, tried=tried, insist=False)
            parts = [left[first : first + AT_ONCE] for first in range(0, len(left), AT_ONCE)]
            answers = await self._wire.ask(
                *(Transaction([Delete(path, -1) for node in part for path in node.paths]) for part in parts),
                until=until, proof=True,
            )  # fmt: skip
            left = []
            for part, answer in zip(parts, answers, strict=True):
                if isinstance(answer, CUT):
                    left += part
                elif any(isinstance(one, Exception) for one in checked(answer)):
                    # One of them is gone already, so the transaction has done nothing: each for itself.
                    left += await self._remove_each(part, there, until, tried)
                else:
                    there.update(dict.fromkeys(part, True))
            tried = True
        return [stood[node] and there[node] for node in nodes]

    async def _remove_each(
        self, nodes: Sequence[Node], there: dict[Node, bool], until: float, tried: bool
    ) -> list[Node]:
        """Note which of these stood there; those without an answer."""
        await self._connected(until, tried=True, insist=False)
        requests = [(node, Delete(path, -1)) for node in nodes for path in node.paths]
        answers = await self._wire.ask(*(request for _, request in requests), until=until, proof=True)
        # The node itself is the last of its paths, and so is its answer.
        last = {node: answer for (node, _), answer in zip(requests, answers, strict=True)}
        for node, answer in last.items():
            if not isinstance(answer, CUT):
                there[node] = _was_there(answer, tried)
        return [node for node, answer in last.items() if isinstance(answer, CUT)]

    async def _find(self, nodes: Sequence[Node], until: float) -> None:
        """Give those whose create had no answer the path that they have in their line, if they are there: one look per name."""
        by_name: dict[str, list[Node]] = {}
        for node in nodes:
            by_name.setdefault(node.claim.name, []).append(node)
        for name, those in by_name.items():
            line = {place.id: place.node for place in await self._lines.read(name, until, insist=False)}
            for node in those:
                found = line.get(node.claim.id)
                if found is not None:
                    node.path = f"{node.parent}/{found}"

    async def _connected(self, until: float, *, tried: bool, insist: bool = True) -> None:
        try:
            await self._wire.connected(None, until, insist=insist)
        except BackendUnavailable as problem:
            problem.unsent = problem.unsent and not tried
            raise


def _was_there(answer: Any, tried: bool) -> bool:
    if isinstance(answer, problems.NoNodeError):
        return tried
    checked(answer)
    return True
