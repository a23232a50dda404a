"""Putting a claim into its line, once however often it takes, and finding out where it stands there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from kazoo import exceptions as problems
from kazoo.protocol.serialization import Create2, Delete, Exists, GetChildren
from kazoo.security import ACL

from ...errors import BackendUnavailable
from ...runtime import Runtime
from .batch import CUT
from .leavings import Leavings
from .line import node_name, position
from .lines import Lines, checked
from .looks import Look, Looks, View
from .node import Node, written
from .pulse import Pulse
from .session import PROOFS
from .watching import Watching
from .wire import Wire


class Entries:
    """Makes the nodes of one client."""

    def __init__(
        self,
        wire: Wire,
        runtime: Runtime,
        acl: Sequence[ACL],
        *,
        lines: Lines,
        looks: Looks,
        watching: Watching,
        leavings: Leavings,
        pulse: Pulse,
    ) -> None:
        self._wire = wire
        self._runtime = runtime
        self._acl = acl
        self._lines = lines
        self._looks = looks
        self._watching = watching
        self._leavings = leavings
        self._pulse = pulse

    async def create(self, node: Node, until: float, *, doubt: bool, wait: bool) -> None:
        """Make the node, once however often it takes, and look at the line in the same round trip."""
        claim = node.claim
        request = Create2(
            f"{node.parent}/{node_name(claim.weight, claim.capacity, claim.id)}", written(claim), self._acl, 3
        )
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
            made, view = await self._make(node, [*parents, request], sent, wait, until)
            if isinstance(made, problems.NoNodeError):
                # First of its name, or the server has just removed the empty parent: make it on the way.
                if parents:
                    await self._lines.make(node.parent, until)
                parents = self._lines.containers(node.parent)
                continue
            doubt = True
            if isinstance(made, CUT) or isinstance(view, (*CUT, problems.NoNodeError)):
                continue
            checked(made, view)
            if node.session is session and not node.gone:
                self._pulse.by(min(node.expires, sent + session.timeout / PROOFS))
                return

    async def _make(self, node: Node, requests: list[Any], sent: float, wait: bool, until: float) -> tuple[Any, Any]:
        """What became of the create, and of the look at the line: in one round trip, or by a look that serves many."""
        landed, done = partial(self._landed, node, sent), self._runtime.signal()
        views: list[View] = []

        def see(view: View) -> None:
            views.append(view)
            self._see(node, wait, view)

        if self._looks.is_free(node.parent):
            look = Look()

            def both(answers: list[Any]) -> None:
                landed(answers[-2])
                self._looks.seen(node.parent, look, View(answers[-1]), [see])
                done.set()

            batch = self._wire.post(*requests, GetChildren(node.parent, None), proof=True, then=both)
            self._looks.begun(node.parent, look)
        else:

            def seen(view: View) -> None:
                see(view)
                done.set()

            def first(answers: list[Any]) -> None:
                if landed(answers[-1]):
                    self._looks.look(node.parent, seen)
                else:
                    done.set()

            batch = self._wire.post(*requests, proof=True, then=first)
        if not await done.wait(until):
            raise self._wire.no_answer()
        return batch.answers[len(requests) - 1], views[0].answer if views else None

    def _landed(self, node: Node, sent: float, made: Any) -> bool:
        """In kazoo's thread: the node is made; whether it is ours to stand in the line with."""
        if not isinstance(made, tuple):
            return False
        path, stat = made
        node.path = path
        if node.withdrawn:
            # The caller had given up before the request got through.
            self._leavings.add(node)
            return False
        return self._stands(node, stat, sent)

    def _see(self, node: Node, wait: bool, view: View) -> None:
        """In kazoo's thread: where the new claim stands. Whoever must wait watches at once what decides its turn."""
        if view.line is None or node.path is None or node.withdrawn or node.gone or node.session is None:
            return
        node.stand(view.line, view.places.get(node.claim.id))
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
                node.stand(line, at)
                node.held_at_once = node.holds
                node.stale = not node.holds
                self._pulse.by(node.expires)
                return True
            # Made by a session of ours that has ended; it goes with that, or now.
            node.path = None
            (answer,) = await self._wire.ask(Delete(path, -1), until=until)
            if not isinstance(answer, (*CUT, problems.NoNodeError)):
                checked(answer)
