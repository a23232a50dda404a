"""ZooKeeper: one session per client, one ephemeral sequential node per claim, its czxid the token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kazoo.protocol.serialization import CheckVersion, GetData, Transaction

from ...core.backend import Findings
from ...core.claim import Ceiling, Claim, Gone, Grant, Line, Record, Unanswered, Waiting
from ...core.rule import admitted
from ...core.waiting import Hints
from ...core.worker import Worker
from ...errors import BackendUnavailable
from ...guarantees import Guarantees
from ...runtime import Runtime
from ...runtime.blocking import BlockingRuntime
from .answers import CUT
from .changes import FolderChanges
from .channel import KazooChannel
from .claims import Claims, OwnNode
from .commands import LineCommands, checked
from .doctor import findings
from .entry import NodeMaker
from .inspection import LineInspection
from .keeping import LARGEST, ZooKeeperKeeping
from .session import PROOFS
from .subscription import Subscription, View
from .target import ZooKeeperTarget

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

    ends_with_client = True
    largest_kept = LARGEST
    guarantees = GUARANTEES
    reader = None
    """kazoo's own thread reads, in both flavours."""

    def __init__(self, target: ZooKeeperTarget, runtime: Runtime) -> None:
        self.url = target.url
        self._target = target
        self._runtime = runtime
        self._begin(target.first_channel(runtime, self._session_changed))

    def _begin(self, channel: KazooChannel) -> None:
        target, runtime = self._target, self._runtime
        self._channel = channel
        self._commands = LineCommands(channel, f"{target.chroot}/{target.prefix}", target.acl)
        self._claims = Claims(channel, self._commands, runtime, self._forget)
        self._nodes = self._claims.nodes
        self._subscription = Subscription(channel, self._nodes, target.chroot, self._heard)
        self._changes = FolderChanges(channel, target.chroot, self._heard)
        # A thread in asyncio too: a loop that is blocked for longer than a ttl must not keep others from the lock.
        self._worker = Worker(BlockingRuntime(), "lockline-zookeeper", self._beat, self._idle)
        channel.alarm = self._worker.by
        self._maker = NodeMaker(channel, self._commands, runtime, self._claims, self._subscription)
        self._inspection = LineInspection(channel, self._commands, self._nodes)
        self._keeping = ZooKeeperKeeping(channel, self._commands, runtime, self._nodes)

    def forked(self) -> None:
        self._channel.abandon()
        self._begin(self._target.next_channel(self._runtime, self._session_changed))

    # -- enter -------------------------------------------------------------------------------------

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        if wait:
            self._channel.may_wait_here()
        known = self._nodes.get(claim.id)
        if known is None and not wait and not await self._has_room(claim, until):
            # Found by a read: a try that fails writes nothing and leaves nothing.
            return None
        node = known or self._claims.add(claim)
        try:
            held = await self._maker.create(node, until, doubt=known is not None, wait=wait)
        except BackendUnavailable as problem:
            if problem.unsent:
                # There is nothing that anybody would have to withdraw.
                self._forget(node)
            raise
        if held:
            return Grant(node.token)
        if not wait:
            await self.leave(claim, until)
            return None
        # Its turn may have come since; then `place` says so at once.
        return _waits(node)

    async def _has_room(self, claim: Claim, until: float) -> bool:
        line = await self._commands.line(claim.name, until, ttl=claim.ttl, insist=False)
        return admitted([*line, claim]) > len(line)

    # -- place -------------------------------------------------------------------------------------

    def report_to(self, hints: Hints) -> None:
        self._hints = hints

    def _heard(self, claim_id: str) -> None:
        self._hints.heard(claim_id)

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        while True:
            node = self._nodes.get(claim.id)
            if node is None or node.gone:
                return Gone()
            if node.stale:
                await self._channel.connected(None, until)
                checked(await self._look_again(node, until))
                node.look_by = 0.0
                continue
            if node.holds:
                node.granted = node.granted or self._runtime.wall()
                return Grant(node.token)
            node.look_by = node.look_by or self._runtime.now() + NET
            if self._runtime.now() < node.look_by:
                return _waits(node)._replace(look_by=node.look_by)
            node.stale = True

    async def _look_again(self, node: OwnNode, until: float) -> Any:
        """Read the line once more for this claim; a refusal, or None."""
        done = self._runtime.signal()
        answers: list[Any] = []

        def looked(view: View) -> None:
            answers.append(None if view.names is not None or isinstance(view.answer, CUT) else view.answer)
            self._subscription.take_in(node, view)
            done.set()

        self._subscription.looks.look(node.parent, looked)
        if not await done.wait(until):
            raise self._channel.no_answer()
        return answers[0]

    def _session_changed(self) -> None:
        """In kazoo's thread: the connection or the session was lost, and with it every watch."""
        self._subscription.forget_all()
        for node in list(self._nodes.values()):
            if node.lost_session:
                node.end = node.end or "expired"
                self._hints.heard(node.claim.id)
        self._hints.heard_all()

    # -- leave, renew ------------------------------------------------------------------------------

    async def leave(self, claim: Claim, until: float, *, heir: str = "") -> bool:
        if (next_one := self._nodes.get(heir)) is not None:
            # It knows: the end of the one ahead is no news to it any more.
            next_one.holds = True
            next_one.granted = self._runtime.wall()
        (there,) = await self._remove([claim], until, insist=True)
        return there

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        return await self._remove(claims, until, insist=False)

    async def _remove(self, claims: Sequence[Claim], until: float, *, insist: bool) -> list[bool]:
        nodes = [self._withdraw(claim) for claim in claims]
        try:
            there = await self._claims.remove(nodes, until, insist=insist)
        except BaseException:
            for node in nodes:
                if self._nodes.get(node.claim.id) is node:
                    # Whoever called will not ask for ever, and the node would stand as long as the session.
                    self._claims.leave_behind(node)
            raise
        for node in nodes:
            self._forget(node)
        return there

    def _withdraw(self, claim: Claim) -> OwnNode:
        node = self._nodes.get(claim.id) or OwnNode(claim, self._commands.parent(claim.name))
        node.withdrawn = True
        return node

    def _forget(self, node: OwnNode) -> None:
        if self._nodes.get(node.claim.id) is node:
            self._nodes.pop(node.claim.id, None)
        self._subscription.forget(node)

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        return await self._claims.renew(claims, until)

    # -- the worker --------------------------------------------------------------------------------

    async def _beat(self) -> float:
        """In the worker's thread: remove what nobody renewed, keep the session confirmed; when to come again.

        A live session keeps its nodes, so a claim whose ttl is over is removed by its own client. Where that is frozen
        or dead, the session ends.
        """
        now = self._runtime.now()
        session, soonest = self._channel.session, float("inf")
        living: OwnNode | None = None
        for node in list(self._nodes.values()):
            if node.gone or node.path is None or node.session is None:
                continue
            if node.expires <= now:
                node.end = "expired"
                self._claims.leave_behind(node)
                self._hints.heard(node.claim.id)
                continue
            living = node
            soonest = min(soonest, node.expires)
        soonest = min(soonest, self._channel.watch_over(now))
        if living is None or session is None or session.ended:
            return soonest
        if not self._channel.client.connected:
            return min(soonest, now + session.timeout / PROOFS)
        if session.due(now) <= now:
            self._channel.post(Transaction([CheckVersion(living.path, -1)]), proof=True, urgent=True)
        return min(soonest, session.due(now))

    def _idle(self) -> bool:
        return not self._channel.owed and all(node.gone for node in list(self._nodes.values()))

    async def attend(self) -> None:
        for node in list(self._nodes.values()):
            # Only now, so that a lease that is released soon costs no watch.
            self._subscription.watch_own(node)

    async def watch(self, name: str, watcher: str, until: float) -> bool:
        await self._channel.connected(None, until, insist=False)
        self._changes.watch(self._commands.parent(name), watcher)
        return True

    async def unwatch(self, watcher: str) -> None:
        self._changes.unwatch(watcher)

    # -- questions ---------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Line:
        return await self._inspection.look(name, self._runtime.now(), until)

    async def list(self, prefix: str, until: float) -> list[str]:
        return await self._inspection.names(prefix, until)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        victims = await self._inspection.evict(name, until, token)
        for victim in victims:
            if victim in self._nodes:
                self._hints.heard(victim)
        return len(victims)

    async def examine(self, until: float) -> Findings:
        session = await self._channel.connected(None, until, insist=False)
        (config,) = await self._channel.ask(GetData("/zookeeper/config", None), until=until)
        return await findings(self._channel, session, config, self._runtime, until)

    # -- what is kept beside a line ------------------------------------------------------------------

    async def kept(self, name: str, what: str, until: float, token: int = 0, ttl: float = 0.0) -> Record:
        # Nobody with a lower token writes, because no node that has one stands any more.
        return await self._keeping.look(name, what, until)

    async def keep(self, name: str, what: str, value: bytes, token: int, ttl: float, until: float) -> bool:
        return await self._keeping.keep(name, what, value, token, ttl, until)

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
        return Check(node.path[len(self._target.chroot) :], -1)

    async def close(self) -> None:
        await self._worker.stop(self._runtime.now())
        await self._channel.close(self._runtime.now() + 2.0)


def _waits(node: OwnNode) -> Waiting:
    ahead = node.ahead
    return Waiting(len(ahead), ticket=node.token, behind=ahead[-1].id if ahead else "")
