"""Renewal: one transaction that only a majority can answer, and only if every node in it is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo import exceptions as problems
from kazoo.protocol.serialization import CheckVersion, Create, Exists, SetData, Sync, Transaction
from kazoo.security import ACL

from ...core.claim import Claim, Gone, Unanswered
from ...errors import BackendUnavailable
from ...runtime import Runtime
from .batch import CUT
from .line import lighter_name, read_line
from .lines import checked, refusal
from .node import Node, written
from .tap import AT_ONCE
from .wire import Wire

EXPECTED = (
    problems.NoNodeError, problems.BadVersionError, problems.NodeExistsError, problems.RolledBackError,
    problems.RuntimeInconsistency,
)  # fmt: skip
"""A node is not as we know it, or the request only failed along with such a one. Everything else is a refusal."""


class Renewals:
    """Keeps the nodes of one client."""

    def __init__(self, wire: Wire, runtime: Runtime, root: str, acl: Sequence[ACL], nodes: dict[str, Node]) -> None:
        self._wire = wire
        self._runtime = runtime
        self._root = root
        self._acl = acl
        self._nodes = nodes

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        """What became of each claim, in one transaction per `AT_ONCE` of them if all are as they were."""
        sent = self._runtime.now()
        fates: list[Gone | Unanswered | None] = [self._fate(claim, sent) for claim in claims]
        tried = False
        alive = [at for at, fate in enumerate(fates) if fate is None]
        for first in range(0, len(alive), AT_ONCE):
            part = alive[first : first + AT_ONCE]
            while part:
                try:
                    await self._wire.connected(None, until)
                except BackendUnavailable as silence:
                    silence.unsent = silence.unsent and not tried
                    raise
                tried = True
                asked = [(at, request) for at in part for request in self._confirm(claims[at])]
                if not asked:
                    break
                (answers,) = await self._wire.ask(
                    Transaction([request for _, request in asked]), until=until, proof=True, urgent=True
                )
                if not isinstance(answers, CUT):
                    if not any(isinstance(answer, Exception) for answer in checked(answers)):
                        break
                    refused = {
                        at: refusal(answer)
                        for (at, _), answer in zip(asked, answers, strict=True)
                        if isinstance(answer, Exception) and not isinstance(answer, EXPECTED)
                    }
                    for at, problem in refused.items():
                        # Asking again changes nothing, and the other claims have nothing to do with it.
                        fates[at] = Unanswered(problem)
                    if not refused:
                        await self._find_missing([claims[at] for at in part], until)
                part = [at for at in part if fates[at] is None and self._fate(claims[at], sent) is None]
        for at, claim in enumerate(claims):
            fates[at] = fates[at] or self._fate(claim, sent)
            node = self._nodes.get(claim.id)
            if fates[at] is None and node is not None:
                node.renewed(claim, sent)
        return fates

    def _fate(self, claim: Claim, now: float) -> Gone | None:
        node = self._nodes.get(claim.id)
        if node is None:
            return Gone()
        if node.gone or node.path is None:
            return Gone("expired" if node.end == "expired" else None)
        return Gone("expired") if now >= node.expires else None

    def _confirm(self, claim: Claim) -> list[Any]:
        """A write that only a majority can answer, and only if the node is there."""
        node = self._nodes.get(claim.id)
        if node is None or node.path is None:
            # Released meanwhile, by another thread.
            return []
        requests: list[Any] = []
        if claim.ttl > node.ttl or claim.weight < node.weight:
            requests.append(SetData(node.path, written(claim._replace(ttl=max(claim.ttl, node.ttl))), -1))
        else:
            requests.append(CheckVersion(node.path, -1))
        if claim.weight < node.weight:
            node.lighter = f"{node.parent}/{lighter_name(read_line([node.path.rpartition('/')[2]])[0], claim.weight)}"
            requests.append(Create(node.lighter, b"", self._acl, 1))
        return requests

    async def _find_missing(self, claims: Sequence[Claim], until: float) -> None:
        """Note which of these nodes are gone; a transaction names only the first."""
        nodes = [node for claim in claims if (node := self._nodes.get(claim.id)) is not None]
        await self._wire.connected(None, until)
        paths = [path for node in nodes for path in (node.path, node.lighter or node.path)]
        stats = await self._wire.ask(Sync(self._root), *(Exists(path, None) for path in paths), until=until)
        for node, stat, lighter in zip(nodes, stats[1::2], stats[2::2], strict=True):
            if stat is None:
                node.end = node.end or "evicted"
            elif node.lighter is not None and lighter is not None and not isinstance(lighter, Exception):
                # The change was made by a request whose reply was lost.
                node.weight = min(node.weight, 1)
