"""ZooKeeper: one session per client, one ephemeral sequential node per claim, its czxid the token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

from kazoo import exceptions as problems
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Create2,
    Delete,
    Exists,
    GetChildren,
    GetData,
    SetData,
    Sync,
    Transaction,
)
from kazoo.protocol.states import EventType

from ...core.backend import Findings
from ...core.claim import Claim, Gone, Grant, Line, Standing, Waiting
from ...core.live import Ceiling
from ...core.runtime import Runtime
from ...errors import BackendUnavailable
from ...guarantees import Guarantees
from .doctor import findings
from .line import Place, admitted, escaped, lighter_name, node_name, position, read_line, unescaped
from .node import Node, read_data, written
from .pulse import Pulse
from .session import PROOFS, TOUCHES
from .settings import Settings
from .wire import AT_ONCE, CUT, CreateContainer, Wire

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
        self._watchers: dict[str, set[str]] = {}
        self._own: dict[str, str] = {}
        self._news: set[str] = set()
        self._interrupted = False
        self._pulse = Pulse(self._beat, self._runtime)

    def forked(self) -> None:
        self._wire.abandon()
        self._begin(self._settings.next_wire(self._runtime, self._session_changed))

    # -- enter -------------------------------------------------------------------------------------

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        if wait:
            # Before the claim stands: a hint that comes between would have nowhere to go.
            self._mailbox.open(claim.id)
        known = self._nodes.get(claim.id)
        if known is None and not wait and not await self._has_room(claim, until):
            # Found by a read: a try that fails writes nothing and leaves nothing.
            return None
        node = known or self._nodes.setdefault(claim.id, Node(claim, self._parent(claim.name)))
        await self._create(node, until, doubt=known is not None, wait=wait)
        if node.holds:
            self._mailbox.close(claim.id)
            return Grant(node.token)
        if not wait:
            await self.leave(claim, until)
            return None
        return Waiting(len(node.ahead))

    async def _has_room(self, claim: Claim, until: float) -> bool:
        line = await self._read(claim.name, until, ttl=claim.ttl)
        return admitted([*line, claim]) > len(line)

    async def _create(self, node: Node, until: float, *, doubt: bool, wait: bool) -> None:
        """Make the node, once however often it takes, and look at the line in the same round trip."""
        claim = node.claim
        request = Create2(
            f"{node.parent}/{node_name(claim.weight, claim.capacity, claim.id)}", written(claim), self._settings.acl, 3
        )
        look = GetChildren(node.parent, None)
        while True:
            session = await self._wire.connected(claim.ttl, until)
            if doubt and await self._find(node, until):
                return
            sent = self._runtime.now()
            made, children = await self._wire.ask(
                request, look, until=until, proof=True, then=partial(self._landed, node, sent, wait)
            )
            if isinstance(made, problems.NoNodeError):
                # First of its name, or the server has just removed the empty parent.
                await self._make_parents(node.parent, until)
                continue
            doubt = True
            if isinstance(made, CUT) or isinstance(children, (*CUT, problems.NoNodeError)):
                continue
            _check(made, children)
            if node.session is session and not node.gone:
                self._pulse.by(min(node.expires, sent + session.timeout / TOUCHES))
                return

    def _landed(self, node: Node, sent: float, wait: bool, answers: list[Any]) -> None:
        """In kazoo's thread: the node is made. Whoever must wait watches at once what decides its turn."""
        made, children = answers
        if not isinstance(made, tuple):
            return
        path, stat = made
        if node.withdrawn:
            # The caller had given up before the request got through.
            self._wire.post(Delete(path, -1))
            return
        node.path = path
        if self._stands(node, stat, sent) and isinstance(children, list):
            node.stand(read_line(children))
            if wait:
                self._watch(node)

    def _stands(self, node: Node, stat: Any, sent: float) -> bool:
        """Whether the node belongs to the session that we have now: only then it is ours to hold."""
        session = self._wire.session
        if session is None or session.ended or stat.ephemeralOwner != session.id:
            return False
        node.token, node.session, node.end, node.stale = stat.czxid, session, None, False
        node.expires = max(node.expires, sent + node.claim.ttl)
        node.watched.clear()
        return True

    async def _find(self, node: Node, until: float) -> bool:
        """Whether the claim stands in the line already: then the reply to an earlier request was lost."""
        while True:
            sent = self._runtime.now()
            line = await self._read(node.claim.name, until)
            at = position(line, node.claim.id)
            if at is None:
                return False
            path = f"{node.parent}/{line[at].node}"
            await self._wire.connected(None, until)
            (stat,) = await self._wire.ask(Exists(path, None), until=until)
            if isinstance(stat, CUT) or stat is None:
                continue
            _check(stat)
            node.path = path
            if self._stands(node, stat, sent):
                node.stand(line)
                node.stale = not node.holds
                self._pulse.by(node.expires)
                return True
            # Made by a session of ours that has ended; it goes with that, or now.
            node.path = None
            await self._wire.ask(Delete(path, -1), until=until)

    async def _make_parents(self, parent: str, until: float) -> None:
        containers = [CreateContainer(path, b"", self._settings.acl, 4) for path in (self._root, parent)]
        answers = await self._wire.ask(*containers, until=until)
        if isinstance(answers[0], problems.UnimplementedError):
            raise BackendUnavailable("this ZooKeeper knows no container nodes; Lockline needs ZooKeeper 3.5.3 or later")
        if isinstance(answers[0], problems.NoNodeError):
            parts = self._root.split("/")[1:-1]
            folders = ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]
            await self._wire.ask(*(Create(path, b"", self._settings.acl, 0) for path in folders), until=until)
            answers = await self._wire.ask(*containers, until=until)
        for answer in answers:
            if not isinstance(answer, (*CUT, problems.NodeExistsError, problems.NoNodeError)):
                _check(answer)

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
                await self._wire.ask(GetChildren(node.parent, None), until=until, then=partial(self._looked, node))
                continue
            if not await self._mailbox.wait(claim.id, min(until, self._runtime.now() + NET)):
                node.stale = node.stale or self._runtime.now() < until
        return None

    # What follows runs in kazoo's thread, one step after the other: a waiter is woken when its turn has come, and
    # not for each step on the way there.

    def _looked(self, node: Node, answers: list[Any]) -> None:
        (children,) = answers
        if isinstance(children, list):
            node.stale = False
            node.stand(read_line(children))
        elif isinstance(children, problems.NoNodeError):
            node.stand([])
        else:
            node.stale = True
        self._go_on(node)

    def _watch(self, node: Node) -> None:
        """Watch what decides this claim's turn, and nothing else."""
        if node.holds or node.gone or node.withdrawn:
            return
        wanted = node.to_watch()
        if not wanted:
            return
        for name in wanted:
            # Before the request goes out: the event may be here before its answer is.
            node.watched.add(name)
            self._watchers.setdefault(f"{node.parent}/{name}", set()).add(node.claim.id)
        # `get`, not `exists`: a watch on what has gone meanwhile would stay for ever.
        self._wire.post(
            *(GetData(f"{node.parent}/{name}", self._on_watch) for name in wanted),
            then=partial(self._watched, node, wanted),
        )

    def _watched(self, node: Node, names: list[str], answers: list[Any]) -> None:
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, problems.NoNodeError):
                self._left(node, name)
            elif isinstance(answer, Exception):
                node.stale = True
                self._go_on(node)

    def _left(self, node: Node, name: str) -> None:
        """A deletion is the ensemble's own decision and there is no way back into the line, so it counts as it is."""
        node.ahead_left(name)
        if node.holds:
            self._go_on(node)
        else:
            # Who stood ahead of that one may have left unwatched.
            self._wire.post(GetChildren(node.parent, None), then=partial(self._looked, node))

    def _go_on(self, node: Node) -> None:
        if node.holds or node.stale or node.gone:
            self._mailbox.deliver(node.claim.id)
        else:
            self._watch(node)

    def _on_watch(self, event: Any) -> None:
        """A node that somebody watches has gone or changed."""
        if event.type == EventType.NONE:
            return
        path = self._settings.chroot + event.path
        deleted = event.type == EventType.DELETED
        for claim_id in self._watchers.pop(path, ()):
            node = self._nodes.get(claim_id)
            if node is None or node.gone or node.mine is None:
                continue
            if deleted:
                self._left(node, path.rpartition("/")[2])
            else:
                node.stale = True
                node.watched.clear()
                self._go_on(node)
        own = self._own.pop(path, None)
        if own is not None and own in self._nodes:
            self._nodes[own].own_watch = False
            if deleted:
                self._news.add(own)

    def _session_changed(self) -> None:
        """In kazoo's thread: the connection or the session was lost, and with it every watch."""
        self._watchers.clear()
        self._own.clear()
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
        node = self._nodes.get(claim.id)
        self._mailbox.close(claim.id)
        if node is None:
            node = Node(claim, self._parent(claim.name))
        node.withdrawn = True
        tried = False
        while node.path is not None and not (node.session is not None and node.session.ended):
            await self._wire.connected(None, until)
            answer = await self._delete(node, until)
            if isinstance(answer, problems.NoNodeError):
                # A delete of ours whose reply was lost may have done it.
                self._forget(node)
                return tried and node.end is None
            if not isinstance(answer, CUT):
                _check(answer)
                self._forget(node)
                return node.end is None
            tried = True
        there = False
        if node.path is None:
            there = await self._remove_by_id(node, until)
        self._forget(node)
        return there

    async def _delete(self, node: Node, until: float) -> Any:
        assert node.path is not None
        if node.lighter is None:
            return (await self._wire.ask(Delete(node.path, -1), until=until, proof=True))[0]
        requests = [Delete(node.lighter, -1), Delete(node.path, -1)]
        return _last_problem(await self._wire.ask(*requests, until=until, proof=True))

    async def _remove_by_id(self, node: Node, until: float) -> bool:
        """A claim whose create has no answer: on this session the list comes after it, on another one after a sync."""
        there = False
        for place in await self._read(node.claim.name, until):
            if place.id == node.claim.id:
                (answer,) = await self._wire.ask(Delete(f"{node.parent}/{place.node}", -1), until=until)
                if isinstance(answer, CUT):
                    return await self._remove_by_id(node, until)
                there = there or answer is True
        return there

    def _forget(self, node: Node) -> None:
        if self._nodes.get(node.claim.id) is node:
            del self._nodes[node.claim.id]
        if node.path is not None:
            self._own.pop(node.path, None)

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | None]:
        sent = self._runtime.now()
        fates: list[Gone | None] = [self._fate(claim, sent) for claim in claims]
        alive = [at for at, fate in enumerate(fates) if fate is None]
        for first in range(0, len(alive), AT_ONCE):
            part = alive[first : first + AT_ONCE]
            while part:
                await self._wire.connected(None, until)
                requests = [request for at in part for request in self._confirm(claims[at])]
                (answers,) = await self._wire.ask(Transaction(requests), until=until, proof=True)
                if isinstance(answers, CUT):
                    part = [at for at in part if self._fate(claims[at], sent) is None]
                    continue
                if not any(isinstance(answer, Exception) for answer in _check(answers)):
                    break
                gone = await self._missing([claims[at] for at in part], until)
                part = [at for at in part if claims[at].id not in gone]
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
        node = self._nodes[claim.id]
        assert node.path is not None
        requests: list[Any] = []
        if claim.ttl > node.ttl or claim.weight < node.weight:
            requests.append(SetData(node.path, written(claim._replace(ttl=max(claim.ttl, node.ttl))), -1))
        else:
            requests.append(CheckVersion(node.path, -1))
        if claim.weight < node.weight:
            node.lighter = f"{node.parent}/{lighter_name(read_line([node.path.rpartition('/')[2]])[0], claim.weight)}"
            requests.append(Create(node.lighter, b"", self._settings.acl, 1))
        return requests

    async def _missing(self, claims: Sequence[Claim], until: float) -> set[str]:
        """Which of these nodes are gone; a transaction names only the first."""
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
        return {node.claim.id for node in nodes if node.end is not None}

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
                self._wire.post(*(Delete(path, -1) for path in (node.lighter, node.path) if path is not None))
                self._mailbox.deliver(node.claim.id)
                continue
            living = node
            soonest = min(soonest, node.expires)
        if living is None or session is None or session.ended:
            return soonest
        if self._wire.client.connected:
            if now - session.last_proof >= session.timeout / PROOFS:
                session.last_proof = now
                self._wire.post(Transaction([CheckVersion(living.path, -1)]), proof=True)
            elif now - session.last_sent >= session.timeout / TOUCHES:
                self._wire.post(Exists(self._root, None))
        return min(soonest, now + session.timeout / TOUCHES)

    async def news(self) -> Collection[str]:
        news, self._news = self._news, set()
        for node in list(self._nodes.values()):
            # Only now, so that a lease that is released soon costs no watch.
            if node.holds and not node.own_watch and not node.gone and node.path is not None:
                node.own_watch = True
                self._own[node.path] = node.claim.id
                self._wire.post(GetData(node.path, self._on_watch), then=self._watched_own(node))
        return news

    def _watched_own(self, node: Node) -> Callable[[list[Any]], None]:
        def then(answers: list[Any]) -> None:
            if isinstance(answers[0], problems.NoNodeError):
                self._news.add(node.claim.id)
            elif isinstance(answers[0], Exception):
                node.own_watch = False

        return then

    # -- questions ---------------------------------------------------------------------------------

    async def _read(self, name: str, until: float, ttl: float | None = None) -> list[Place]:
        """The line as the leader knows it now."""
        parent = self._parent(name)
        while True:
            await self._wire.connected(ttl, until)
            synced, children = await self._wire.ask(Sync(parent), GetChildren(parent, None), until=until)
            if isinstance(children, problems.NoNodeError):
                return []
            if not isinstance(children, CUT) and not isinstance(synced, CUT):
                return read_line(_check(children))

    async def look(self, name: str, until: float) -> Line:
        parent = self._parent(name)
        while True:
            line = await self._read(name, until)
            if not line:
                return Line(name)
            paths = [f"{parent}/{place.node}" for place in line]
            answers = await self._many([GetData(path, None) for path in paths], until)
            if any(isinstance(answer, CUT) for answer in answers):
                continue
            # Who has left between the two looks is not shown; the others are as they stood.
            there = [
                (place, answer)
                for place, answer in zip(line, answers, strict=True)
                if not isinstance(answer, problems.NoNodeError)
            ]
            holders = admitted([place for place, _ in there])
            return Line(
                name,
                tuple(self._seen(place, _check(answer), at < holders) for at, (place, answer) in enumerate(there)),
            )

    def _seen(self, place: Place, answer: Any, holds: bool) -> Standing:
        data, stat = answer
        seen = read_data(data)
        node = self._nodes.get(place.id)
        # Of another client's claim only its ttl is known; of ours, what is left.
        remaining = seen.ttl if node is None else max(0.0, node.expires - self._runtime.now())
        return Standing(
            id=place.id, owner=seen.owner, kind=seen.kind, token=stat.czxid, holds=holds, weight=place.weight,
            capacity=place.capacity, ttl=seen.ttl, remaining=remaining, since=seen.since, meta=seen.meta,
        )  # fmt: skip

    async def list(self, prefix: str, until: float) -> list[str]:
        while True:
            await self._wire.connected(None, until)
            _, children = await self._wire.ask(Sync(self._root), GetChildren(self._root, None), until=until)
            if isinstance(children, problems.NoNodeError):
                return []
            if isinstance(children, CUT):
                continue
            names = {child: unescaped(child) for child in _check(children)}
            wanted = [child for child, name in names.items() if name.startswith(prefix)]
            stats = await self._many([Exists(f"{self._root}/{child}", None) for child in wanted], until)
            if not any(isinstance(stat, CUT) for stat in stats):
                # An empty parent waits to be removed by the server.
                return sorted(
                    names[child] for child, stat in zip(wanted, stats, strict=True) if stat and stat.numChildren
                )

    async def _many(self, requests: Sequence[Any], until: float) -> Sequence[Any]:
        answers: Any = []
        for first in range(0, len(requests), AT_ONCE):
            await self._wire.connected(None, until)
            answers += await self._wire.ask(*requests[first : first + AT_ONCE], until=until)
        return answers  # type: ignore[no-any-return]

    async def evict(self, name: str, until: float) -> int:
        parent = self._parent(name)
        line = await self._read(name, until)
        victims = line[: admitted(line)]
        answers = await self._many([Delete(f"{parent}/{victim.node}", -1) for victim in victims], until)
        count = 0
        for victim, answer in zip(victims, answers, strict=True):
            if isinstance(answer, CUT):
                raise BackendUnavailable(f"no answer to the eviction of {victim.id}; evict again")
            count += answer is True
            if victim.id in self._nodes:
                self._news.add(victim.id)
        return count

    async def examine(self, until: float) -> Findings:
        session = await self._wire.connected(None, until)
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

    def _parent(self, name: str) -> str:
        return f"{self._root}/{escaped(name)}"

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


def _check(*answers: Any) -> Any:
    """The last answer; what is an error that nobody expects comes out as ours."""
    for answer in answers:
        if isinstance(answer, problems.NoAuthError):
            raise BackendUnavailable("ZooKeeper says no: the credentials do not fit the ACL of Lockline's nodes")
        if isinstance(answer, Exception):
            raise BackendUnavailable(f"ZooKeeper answered {type(answer).__name__}: {answer}") from answer
    return answers[-1]


def _last_problem(answers: Sequence[Any]) -> Any:
    return next((answer for answer in answers if isinstance(answer, CUT)), answers[-1])
