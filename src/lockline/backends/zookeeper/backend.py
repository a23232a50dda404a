"""ZooKeeper: one session per client, one ephemeral sequential node per claim, its czxid the token."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from kazoo import exceptions as problems
from kazoo.protocol.serialization import (
    CheckVersion,
    Create2,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Transaction,
)

from ...core.backend import Findings
from ...core.claim import Claim, Gone, Grant, Line, Unanswered, Waiting
from ...core.live import Ceiling
from ...core.runtime import Runtime
from ...errors import BackendUnavailable
from ...guarantees import Guarantees
from .batch import CUT
from .doctor import findings
from .leavings import Leavings
from .line import admitted, node_name, position, read_line
from .lines import Lines, checked
from .node import Node, written
from .pulse import Pulse
from .removals import Removals
from .renewals import Renewals
from .session import PROOFS
from .settings import Settings
from .watching import Watching
from .wire import Wire

GUARANTEES = Guarantees(
    exclusion="consensus",
    fifo=True,
    push=True,
    token_survives=frozenset({"release", "expiry", "restart", "failover"}),
    tolerates="Any minority of the ensemble may fail or be cut off; a holder on the wrong side of a cut stops before the next begins.",
)
NET = 30.0
"""How long a waiter goes without looking. Watches are reliable; this is for what nobody thought of."""


class Check(NamedTuple):
    """`transaction.check(*guard)`: the version check that fails once the claim's node is gone."""

    path: str
    version: int


class ZooKeeperBackend:
    """One client of an ensemble."""

    guarantees = GUARANTEES

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        self.url = settings.url
        self._settings = settings
        self._runtime = runtime
        self._root = f"{settings.chroot}/{settings.root}"
        self._begin(settings.first_wire(runtime, self._session_changed))

    def _begin(self, wire: Wire) -> None:
        self._wire = wire
        self._mailbox = self._runtime.mailbox()
        self._nodes: dict[str, Node] = {}
        self._news: set[str] = set()
        self._interrupted = False
        self._lines = Lines(wire, self._runtime, self._root, self._settings.acl, self._nodes)
        self._watching = Watching(wire, self._mailbox, self._nodes, self._news, self._settings.chroot)
        self._leavings = Leavings(wire, self._forget)
        self._removals = Removals(wire, self._lines)
        self._renewals = Renewals(wire, self._runtime, self._root, self._settings.acl, self._nodes)
        self._pulse = Pulse(self._beat, self._runtime)
        wire.alarm = self._pulse.by

    def forked(self) -> None:
        self._wire.abandon()
        self._begin(self._settings.next_wire(self._runtime, self._session_changed))

    # -- enter -------------------------------------------------------------------------------------

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        if wait:
            self._wire.may_wait_here()
            # Before the claim stands: a hint that comes between would have nowhere to go.
            self._mailbox.open(claim.id)
        known = self._nodes.get(claim.id)
        if known is None and not wait and not await self._has_room(claim, until):
            # Found by a read: a try that fails writes nothing and leaves nothing.
            return None
        node = known or self._nodes.setdefault(claim.id, Node(claim, self._lines.parent(claim.name)))
        try:
            await self._create(node, until, doubt=known is not None, wait=wait)
        except BackendUnavailable as problem:
            if problem.unsent:
                # There is nothing that anybody would have to withdraw.
                self._forget(node)
                self._mailbox.close(claim.id)
            raise
        if node.held_at_once:
            self._mailbox.close(claim.id)
            return Grant(node.token)
        if not wait:
            await self.leave(claim, until)
            return None
        # Its turn may have come since; then `turn` says so at once.
        return Waiting(len(node.ahead))

    async def _has_room(self, claim: Claim, until: float) -> bool:
        line = await self._lines.read(claim.name, until, ttl=claim.ttl, insist=False)
        return admitted([*line, claim]) > len(line)

    async def _create(self, node: Node, until: float, *, doubt: bool, wait: bool) -> None:
        """Make the node, once however often it takes, and look at the line in the same round trip."""
        claim = node.claim
        request = Create2(
            f"{node.parent}/{node_name(claim.weight, claim.capacity, claim.id)}", written(claim), self._settings.acl, 3
        )
        look = GetChildren(node.parent, None)
        parents: list[Any] = []
        tried = doubt
        while True:
            try:
                session = await self._wire.connected(claim.ttl, until, insist=wait)
                if doubt and await self._find(node, until):
                    return
            except BackendUnavailable as problem:
                problem.unsent = problem.unsent and not tried
                raise
            tried = True
            sent = self._runtime.now()
            *_, made, children = await self._wire.ask(
                *parents, request, look, until=until, proof=True, then=partial(self._landed, node, sent, wait)
            )
            if isinstance(made, problems.NoNodeError):
                # First of its name, or the server has just removed the empty parent: make it on the way.
                if parents:
                    await self._lines.make(node.parent, until)
                parents = self._lines.containers(node.parent)
                continue
            doubt = True
            if isinstance(made, CUT) or isinstance(children, (*CUT, problems.NoNodeError)):
                continue
            checked(made, children)
            if node.session is session and not node.gone:
                self._pulse.by(min(node.expires, sent + session.timeout / PROOFS))
                return

    def _landed(self, node: Node, sent: float, wait: bool, answers: list[Any]) -> None:
        """In kazoo's thread: the node is made. Whoever must wait watches at once what decides its turn."""
        *_, made, children = answers
        if not isinstance(made, tuple):
            return
        path, stat = made
        node.path = path
        if node.withdrawn:
            # The caller had given up before the request got through.
            self._leavings.add(node)
            return
        if self._stands(node, stat, sent) and isinstance(children, list):
            node.stand(read_line(children))
            node.held_at_once = node.holds
            if wait:
                self._watching.watch(node)

    def _stands(self, node: Node, stat: Any, sent: float) -> bool:
        """Whether the node belongs to the session that we have now: only then it is ours to hold."""
        session = self._wire.session
        if session is None or session.ended or stat.ephemeralOwner != session.id:
            return False
        node.token, node.session, node.end = stat.czxid, session, None
        node.holds = node.stale = False
        node.expires = max(node.expires, sent + node.claim.ttl)
        node.watched.clear()
        return True

    async def _find(self, node: Node, until: float) -> bool:
        """Whether the claim stands in the line already: then the reply to an earlier request was lost."""
        while True:
            sent = self._runtime.now()
            line = await self._lines.read(node.claim.name, until)
            at = position(line, node.claim.id)
            if at is None:
                return False
            path = f"{node.parent}/{line[at].node}"
            await self._wire.connected(None, until)
            (stat,) = await self._wire.ask(Exists(path, None), until=until)
            if isinstance(stat, CUT) or stat is None:
                continue
            checked(stat)
            node.path = path
            if self._stands(node, stat, sent):
                node.stand(line)
                node.held_at_once = node.holds
                node.stale = not node.holds
                self._pulse.by(node.expires)
                return True
            # Made by a session of ours that has ended; it goes with that, or now.
            node.path = None
            (answer,) = await self._wire.ask(Delete(path, -1), until=until)
            if not isinstance(answer, (*CUT, problems.NoNodeError)):
                checked(answer)

    # -- turn --------------------------------------------------------------------------------------

    async def turn(self, claim: Claim, until: float) -> Grant | Gone | None:
        while not self._interrupted:
            node = self._nodes.get(claim.id)
            if node is None or node.gone:
                self._mailbox.close(claim.id)
                return Gone()
            if node.holds and not node.stale:
                self._mailbox.close(claim.id)
                return Grant(node.token)
            if self._runtime.now() >= until:
                return None
            if node.stale:
                await self._wire.connected(None, until)
                (children,) = await self._wire.ask(
                    GetChildren(node.parent, None), until=until, then=partial(self._watching.looked, node)
                )
                if not isinstance(children, (*CUT, problems.NoNodeError)):
                    checked(children)
                continue
            if not await self._mailbox.wait(claim.id, min(until, self._runtime.now() + NET)):
                node.stale = node.stale or self._runtime.now() < until
        return None

    def _session_changed(self) -> None:
        """In kazoo's thread: the connection or the session was lost, and with it every watch."""
        self._watching.forget_all()
        for node in list(self._nodes.values()):
            node.own_watch = False
            node.watched.clear()
            node.stale = True
            if node.session is not None and node.session.ended:
                node.end = node.end or "expired"
                self._news.add(node.claim.id)
        self._mailbox.deliver_all()

    # -- leave, renew ------------------------------------------------------------------------------

    async def leave(self, claim: Claim, until: float) -> bool:
        node = self._withdrawn(claim)
        try:
            there = await self._removals.remove(node, until)
        except BaseException:
            self._leave_behind(node)
            raise
        self._forget(node)
        return there

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        nodes = [self._withdrawn(claim) for claim in claims]
        try:
            there = await self._removals.remove_all(nodes, until)
        except BaseException:
            for node in nodes:
                self._leave_behind(node)
            raise
        for node in nodes:
            self._forget(node)
        return there

    def _withdrawn(self, claim: Claim) -> Node:
        self._mailbox.close(claim.id)
        node = self._nodes.get(claim.id) or Node(claim, self._lines.parent(claim.name))
        node.withdrawn = True
        return node

    def _leave_behind(self, node: Node) -> None:
        if self._nodes.get(node.claim.id) is node:
            # Whoever called will not ask for ever, and the node would stand as long as the session.
            self._leavings.add(node)

    def _forget(self, node: Node) -> None:
        if self._nodes.get(node.claim.id) is node:
            self._nodes.pop(node.claim.id, None)
        self._watching.forget(node)

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        return await self._renewals.renew(claims, until)

    # -- the heartbeat -----------------------------------------------------------------------------

    def _beat(self, now: float) -> float:
        """In the pulse's thread: remove what nobody renewed, keep the session confirmed; when to come again.

        A live session keeps its nodes, so a claim whose ttl is over is removed by its own client. Where that is frozen
        or dead, the session ends.
        """
        session, soonest = self._wire.session, float("inf")
        living: Node | None = None
        for node in list(self._nodes.values()):
            if node.gone or node.path is None:
                continue
            if node.expires <= now:
                node.end = "expired"
                self._news.add(node.claim.id)
                self._leavings.add(node)
                self._mailbox.deliver(node.claim.id)
                continue
            living = node
            soonest = min(soonest, node.expires)
        soonest = min(soonest, self._wire.watch_over(now))
        if living is None or session is None or session.ended:
            return soonest
        if not self._wire.client.connected:
            return min(soonest, now + session.timeout / PROOFS)
        if session.due(now) <= now:
            self._wire.post(Transaction([CheckVersion(living.path, -1)]), proof=True)
        return min(soonest, session.due(now))

    async def news(self) -> Collection[str]:
        news = list(self._news)
        self._news.difference_update(news)
        for node in list(self._nodes.values()):
            # Only now, so that a lease that is released soon costs no watch.
            if node.holds and not node.own_watch and not node.gone and node.path is not None:
                self._watching.watch_own(node)
        return news

    # -- questions ---------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Line:
        return await self._lines.look(name, until)

    async def list(self, prefix: str, until: float) -> list[str]:
        return await self._lines.names(prefix, until)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        victims = await self._lines.evict(name, until, token)
        self._news.update(victim for victim in victims if victim in self._nodes)
        return len(victims)

    async def examine(self, until: float) -> Findings:
        session = await self._wire.connected(None, until, insist=False)
        (config,) = await self._wire.ask(GetData("/zookeeper/config", None), until=until)
        return await findings(self._wire, session, config, self._runtime, until)

    # -- what else a lease needs -------------------------------------------------------------------

    def ceiling(self, claim: Claim) -> Ceiling:
        """Until when the session that carries this claim may be trusted."""
        node = self._nodes.get(claim.id)
        return node.session.ceiling if node is not None and node.session is not None else Ceiling(0.0)

    def guard(self, claim: Claim, token: int) -> Check:
        """The check that the claim's own node is there; its path is never used again."""
        node = self._nodes.get(claim.id)
        if node is None or node.path is None:
            raise BackendUnavailable(f"the claim on {claim.name!r} has no node any more")
        return Check(node.path[len(self._settings.chroot) :], -1)

    def nudge(self, claim_id: str) -> None:
        node = self._nodes.get(claim_id)
        if node is not None:
            node.stale = True
        self._mailbox.deliver(claim_id)

    def interrupt(self) -> None:
        self._interrupted = True
        self._mailbox.deliver_all()

    async def close(self) -> None:
        self._interrupted = True
        self._pulse.stop()
        await self._wire.close(self._runtime.now() + 2.0)
