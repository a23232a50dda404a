"""The claims of one client, one object each, from before the request that makes the node until it is certainly gone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Sequence, Set
from functools import partial
from typing import Any, Final, Literal

from kazoo import exceptions as problems
from kazoo.protocol.serialization import CheckVersion, Create, Delete, Exists, GetChildren, SetData, Sync, Transaction
from kazoo.protocol.states import KazooState

from ...core.batching import SizedBatches
from ...core.claim import Claim, Gone, Unanswered
from ...core.rule import admitted, blockers
from ...runtime import Runtime
from .answers import CUT
from .channel import KazooChannel
from .commands import ClaimNode, LineCommands, checked, is_cut, lighter_name, path_bytes, read_line, refusal, written
from .exchange import AT_ONCE, BYTES_AT_ONCE, STEP_BYTES
from .session import Session, SessionFull

EXPECTED: Final = (
    problems.NoNodeError, problems.BadVersionError, problems.NodeExistsError, problems.RolledBackError,
    problems.RuntimeInconsistency,
)  # fmt: skip
"""A node is not as we know it, or the request only failed along with such a one. Everything else is a refusal."""


class OwnNode:
    """One claim of this client. It is known from before the request that makes it goes out."""

    __slots__ = (
        "ahead", "claim", "end", "expires", "granted", "holds", "lighter", "look_by", "mine", "parent", "path", "path_bytes", "sent", "session", "stale", "token",
        "told", "ttl", "watched", "weight", "withdrawn",
    )  # fmt: skip

    def __init__(self, claim: Claim, parent: str) -> None:
        self.claim = claim
        self.parent = parent
        self.path_bytes = path_bytes(claim, parent)
        """Of its nodes, at most."""
        self.path: str | None = None
        """None until its create is answered."""
        self.lighter: str | None = None
        """The second node, of a claim that became lighter."""
        self.token = 0
        self.session: Session | None = None
        self.expires = 0.0
        """When this client removes it unless it is renewed."""
        self.ttl = claim.ttl
        self.weight = claim.weight
        self.end: Literal["expired", "evicted"] | None = None
        """Why it is gone."""
        self.withdrawn = False
        """Nobody wants it any more: it is removed, whatever it has come to."""
        self.holds = False
        self.granted: float | None = None
        """When it began to hold, by this client's wall clock, if it waited before."""
        self.sent: float | None = None
        """The same as the last renewal was to write it."""
        self.told: float | None = None
        """The same as its node says it."""
        self.mine: ClaimNode | None = None
        self.ahead: list[ClaimNode] = []
        """The line before it, as far as is known. It can only get shorter and lighter, so what is known errs on the safe
        side: when it leaves room, there is room."""
        self.look_by = 0.0
        """When the line is read again although nothing was heard; 0 before it began to wait."""
        self.stale = False
        """The line has to be read again: something changed that no event told in full."""
        self.watched: set[str] = set()

    @property
    def lost_session(self) -> bool:
        """Whether the session that made it has ended, and the node with it."""
        return self.session is not None and self.session.ended

    @property
    def gone(self) -> bool:
        """Whether it is known to be gone: removed, expired, or lost with its session."""
        return self.end is not None or self.lost_session

    @property
    def paths(self) -> list[str]:
        """The nodes it consists of, in the order in which they have to go."""
        return [path for path in (self.lighter, self.path) if path is not None]

    def begin(self, session: Session, token: int, sent: float) -> None:
        """The node was made in this session, by a request sent then."""
        # First: whoever looks for what has run out, in another thread, takes it for begun by its session.
        self.expires = max(self.expires, sent + self.claim.ttl)
        self.token, self.session, self.end = token, session, None
        self.holds = self.stale = False
        self.watched.clear()

    def take_in(self, line: list[ClaimNode], at: int | None) -> None:
        """Take in the line as it was read, and the place in it; a claim that has none is gone."""
        if at is None:
            self.end = self.end or "evicted"
            return
        self.mine, self.ahead = line[at], line[:at]
        # Who holds goes on to hold: nobody comes in ahead. A look that was overtaken by an event changes nothing.
        self.holds = self.holds or at < admitted(line)

    def take_out(self, gone: Container[str]) -> None:
        """These nodes have left the line."""
        self.ahead = [place for place in self.ahead if place.node not in gone]
        assert self.mine is not None
        self.holds = self.holds or admitted([*self.ahead, self.mine]) > len(self.ahead)

    def close_up(self, names: Set[str]) -> bool:
        """Take in which of those ahead are still among these, none of whom became lighter; False where the line has to be read.

        Nobody comes in ahead, so who was there before is all there can be. No need to read the names of those behind.
        """
        if self.mine is None or self.mine.node not in names:
            return False
        self.ahead = [place for place in self.ahead if place.node in names]
        self.holds = self.holds or admitted([*self.ahead, self.mine]) > len(self.ahead)
        return True

    def to_watch(self) -> list[str]:
        """The nodes that decide this claim's turn and are not watched yet."""
        assert self.mine is not None
        return [place.node for place in blockers(self.ahead, self.mine) if place.node not in self.watched]

    def renew(self, claim: Claim, sent: float) -> None:
        """The ensemble confirmed it, as the claim now stands, by a request sent then."""
        self.expires = max(self.expires, sent + claim.ttl)
        self.ttl = max(self.ttl, claim.ttl)
        self.weight = min(self.weight, claim.weight)
        self.told = self.sent


class Claims:
    """Renews and removes the nodes of one client, and no others."""

    def __init__(
        self, channel: KazooChannel, commands: LineCommands, runtime: Runtime, forget: Callable[[OwnNode], None]
    ) -> None:
        self.nodes: dict[str, OwnNode] = {}
        self._channel = channel
        self._commands = commands
        self._runtime = runtime
        self._forget = forget
        self._left_behind: dict[OwnNode, int | None] = {}
        """What must go and has not gone for sure, and the session that made it."""
        self._mutex = threading.Lock()
        self._budget = channel.budget
        self._budget.share(self)
        channel.owes = lambda: bool(self._left_behind)

    def add(self, claim: Claim) -> OwnNode:
        """Know of a claim whose node is to be made; SessionFull if the session can carry no more."""
        node = self.nodes[claim.id] = OwnNode(claim, self._commands.parent(claim.name))
        try:
            self._budget.take(node.path_bytes)
        except SessionFull:
            self._forget(node)
            raise
        return node

    def path_bytes(self) -> int:
        """Of all nodes that this client has in its session, or may have."""
        nodes = {*list(self.nodes.values()), *list(self._left_behind)}
        return sum(node.path_bytes for node in nodes if not node.lost_session)

    # -- renewal: a write that only a majority can answer, and only if every node in it is there -----

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        """What became of each claim, in one transaction per `AT_ONCE` of them if all are as they were."""
        sent = self._runtime.now()
        fates: list[Gone | Unanswered | None] = [self._fate(claim, sent) for claim in claims]
        tried = False
        alive = [at for at, fate in enumerate(fates) if fate is None]
        batches = SizedBatches(
            alive, lambda at: self._renewal_bytes(claims[at]), most=AT_ONCE, most_bytes=BYTES_AT_ONCE
        )
        for part in batches:
            while part:
                await self._channel.connected(None, until, tried=tried)
                tried = True
                asked = [(at, request) for at in part for request in self._confirm(claims[at])]
                if not asked:
                    break
                (answers,) = await self._channel.ask(
                    Transaction([request for _, request in asked]), until=until, proof=True, urgent=True
                )
                if isinstance(answers, CUT) and batches.halve(part):
                    # A server says nothing to a request that is too large for it, it closes the connection.
                    break
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
            node = self.nodes.get(claim.id)
            if fates[at] is None and node is not None:
                node.renew(claim, sent)
        return fates

    def _fate(self, claim: Claim, now: float) -> Gone | None:
        node = self.nodes.get(claim.id)
        if node is None:
            return Gone()
        if node.gone or node.path is None:
            return Gone("expired" if node.end == "expired" else None)
        return Gone("expired") if now >= node.expires else None

    def _confirm(self, claim: Claim) -> list[Any]:
        """The requests that succeed only if the node is there, and change what has changed of the claim."""
        node = self.nodes.get(claim.id)
        if node is None or node.path is None:
            # Released meanwhile, by another thread.
            return []
        node.sent = node.granted
        if claim.ttl <= node.ttl and claim.weight >= node.weight and node.sent == node.told:
            return [CheckVersion(node.path, -1)]
        requests: list[Any] = [SetData(node.path, written(claim._replace(ttl=max(claim.ttl, node.ttl)), node.sent), -1)]
        if claim.weight < node.weight:
            node.lighter = f"{node.parent}/{lighter_name(node.path, claim.weight)}"
            requests.append(Create(node.lighter, b"", self._commands.acl, 1))
        return requests

    def _renewal_bytes(self, claim: Claim) -> int:
        """What `_confirm` takes in a request, at most."""
        node = self.nodes.get(claim.id)
        if node is None:
            return 0
        changes = claim.ttl > node.ttl or claim.weight < node.weight or node.granted != node.told
        # Text in JSON.
        return node.path_bytes + STEP_BYTES + (12 * len(claim.owner) + len(claim.meta) + 2 * STEP_BYTES) * changes

    async def _find_missing(self, claims: Sequence[Claim], until: float) -> None:
        """Note which of these nodes are gone; a transaction names only the first."""
        nodes = [node for claim in claims if (node := self.nodes.get(claim.id)) is not None]
        await self._channel.connected(None, until, tried=True)
        paths = [path for node in nodes for path in (node.path, node.lighter or node.path)]
        stats = await self._channel.ask(Sync(self._commands.root), *(Exists(path, None) for path in paths), until=until)
        for node, stat, lighter in zip(nodes, stats[1::2], stats[2::2], strict=True):
            if stat is None:
                node.end = node.end or "evicted"
            elif node.lighter is not None and lighter is not None and not isinstance(lighter, Exception):
                # The change was made by a request whose reply was lost.
                node.weight = min(node.weight, 1)

    # -- removal: one in one request, many in a few --------------------------------------------------

    async def remove(self, nodes: Sequence[OwnNode], until: float, *, insist: bool) -> list[bool]:
        """Whether each stood there up to now."""
        # What a renewal that is still under way finds from here on may be our own doing.
        stood = [node.end is None for node in nodes]
        await self._find([node for node in nodes if node.path is None], until, insist)
        there: dict[OwnNode, bool] = {}
        left = [node for node in nodes if node.path is not None]
        tried, most = False, AT_ONCE
        while left := [node for node in left if node not in there and not node.lost_session]:
            await self._channel.connected(None, until, insist=insist, tried=tried)
            together = partial(self._remove_together, most=most)
            there.update(await (self._remove_each if len(left) == 1 else together)(left, until, tried))
            # What was cut may have been too large for the server.
            tried, most = True, max(1, most // 2)
        return [was and there.get(node, False) for node, was in zip(nodes, stood, strict=True)]

    async def _remove_together(
        self, nodes: Sequence[OwnNode], until: float, tried: bool, *, most: int
    ) -> dict[OwnNode, bool]:
        """As `_remove_each`: a transaction for each `most` of them, and all transactions on their way at once."""
        parts = list(SizedBatches(nodes, lambda node: node.path_bytes, most=most, most_bytes=BYTES_AT_ONCE))
        answers = await self._channel.ask(
            *(Transaction([Delete(path, -1) for node in part for path in node.paths]) for part in parts),
            until=until, proof=True,
        )  # fmt: skip
        there: dict[OwnNode, bool] = {}
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, CUT):
                continue
            if any(isinstance(one, Exception) for one in checked(answer)):
                # One of them is gone already, so the transaction has done nothing: each for itself.
                await self._channel.connected(None, until, insist=False, tried=True)
                there.update(await self._remove_each(part, until, tried))
            else:
                there.update(dict.fromkeys(part, True))
        return there

    async def _remove_each(self, nodes: Sequence[OwnNode], until: float, tried: bool) -> dict[OwnNode, bool]:
        """Which of these stood there; those without an answer are left out."""
        requests = [(node, Delete(path, -1)) for node in nodes for path in node.paths]
        answers = await self._channel.ask(*(request for _, request in requests), until=until, proof=True)
        # The node itself is the last of its paths, and so is its answer.
        last = {node: answer for (node, _), answer in zip(requests, answers, strict=True)}
        return {node: _was_there(answer, tried) for node, answer in last.items() if not isinstance(answer, CUT)}

    async def _find(self, nodes: Sequence[OwnNode], until: float, insist: bool) -> None:
        """Give those whose create had no answer the path that they have in their line, if they are there: one look per name.

        On the session of the create the list comes after it, on another one after a sync.
        """
        by_name: dict[str, list[OwnNode]] = {}
        for node in nodes:
            by_name.setdefault(node.claim.name, []).append(node)
        for name, those in by_name.items():
            line = {place.id: place.node for place in await self._commands.line(name, until, insist=insist)}
            for node in those:
                if node.claim.id in line:
                    node.path = f"{node.parent}/{line[node.claim.id]}"

    # -- what nobody waits for -----------------------------------------------------------------------

    def leave_behind(self, node: OwnNode) -> None:
        """Have this node removed, now and on each new connection of the session that made it, until the ensemble has answered.

        A node does not die with its claim's ttl, as a key with an expiry would: while its session lives, it stands until
        somebody removes it. So it is not forgotten before, not even by a client that is closed meanwhile and leaves the user's
        own kazoo client behind.
        """
        client = self._channel.client
        with self._mutex:
            self._left_behind[node] = client._session_id if node.session is None else node.session.id
            client.add_listener(self._on_state)
        self._ask_for_removal(node)

    def _ask_for_removal(self, node: OwnNode) -> None:
        if node.path is None:
            # Its create had no answer. On this session the list comes after it, on a new connection after a sync.
            self._channel.post(Sync(node.parent), GetChildren(node.parent, None), then=partial(self._found, node))
        else:
            self._delete(node, node.paths)

    def _found(self, node: OwnNode, answers: list[Any]) -> None:
        if is_cut(answers):
            return
        line = read_line(answers[1]) if isinstance(answers[1], list) else []
        paths = [f"{node.parent}/{place.node}" for place in line if place.id == node.claim.id]
        if paths:
            self._delete(node, paths)
        else:
            self._settle(node)

    def _delete(self, node: OwnNode, paths: list[str]) -> None:
        def deleted(answers: list[Any]) -> None:
            if not is_cut(answers):
                self._settle(node)

        self._channel.post(*(Delete(path, -1) for path in paths), then=deleted)

    def _settle(self, node: OwnNode) -> None:
        with self._mutex:
            self._left_behind.pop(node, None)
            if not self._left_behind:
                self._channel.client.remove_listener(self._on_state)
        self._channel.let_go()
        if node.withdrawn:
            self._forget(node)

    def _on_state(self, state: str) -> None:
        """In kazoo's thread: what was cut is asked for again; what was made by a session that has ended went with it."""
        if state == KazooState.SUSPENDED:
            return
        for node, session in list(self._left_behind.items()):
            if state == KazooState.CONNECTED and session == self._channel.client._session_id:
                self._ask_for_removal(node)
            else:
                self._settle(node)


def _was_there(answer: Any, tried: bool) -> bool:
    # A delete of ours whose reply was lost may have done it.
    if isinstance(answer, problems.NoNodeError):
        return tried
    checked(answer)
    return True
