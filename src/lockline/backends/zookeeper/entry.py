"""Putting a claim into its line, once however often it takes, and finding out where it stands there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from kazoo import exceptions as problems
from kazoo.protocol.serialization import Delete, Exists

from ...runtime import Runtime
from .answers import CUT
from .channel import KazooChannel
from .claims import Claims, OwnNode
from .commands import LineCommands, checked
from .requests import ChildNames
from .session import PROOFS
from .subscription import Look, Subscription, View


class MadeNode(NamedTuple):
    """What became of a create, and of the look at the line behind it."""

    answer: Any
    look: Any
    held: bool
    """It held as soon as it stood, with nobody ahead to wait for."""


@dataclass(frozen=True, slots=True)
class NodeMaker:
    """Makes the nodes of one client."""

    _channel: KazooChannel
    _commands: LineCommands
    _runtime: Runtime
    _claims: Claims
    _subscription: Subscription

    async def create(self, node: OwnNode, until: float, *, doubt: bool, wait: bool) -> bool:
        """Make the node, once however often it takes, and look at the line in the same round trip; whether it held at once."""
        request = self._commands.create(node.claim, node.parent)
        parents: list[Any] = []
        tried = doubt
        while True:
            session = await self._channel.connected(node.claim.ttl, until, insist=wait, tried=tried)
            if doubt and await self._find(node, until):
                return node.holds
            tried = True
            sent = self._runtime.now()
            made = await self._make(node, [*parents, request], sent, wait, until)
            if isinstance(made.answer, problems.NoNodeError):
                # First of its name, or the server has just removed the empty parent: make it on the way.
                if parents:
                    await self._commands.make(node.parent, until)
                parents = self._commands.containers(node.parent)
                continue
            doubt = True
            if isinstance(made.answer, CUT) or isinstance(made.look, (*CUT, problems.NoNodeError)):
                continue
            checked(made.answer, made.look)
            if node.session is session and not node.gone:
                self._channel.alarm(min(node.expires, sent + session.timeout / PROOFS))
                return made.held

    async def _make(self, node: OwnNode, requests: list[Any], sent: float, wait: bool, until: float) -> MadeNode:
        """Create, and look at the line: in one round trip, or by a look that serves many."""
        land, done = partial(self._land, node, sent), self._runtime.signal()
        seen: list[MadeNode] = []

        def see(view: View) -> None:
            seen.append(MadeNode(None, view.answer, self._see(node, wait, view)))

        if self._subscription.looks.is_free(node.parent):
            look = Look()

            def both(answers: list[Any]) -> None:
                land(answers[-2])
                self._subscription.looks.end(node.parent, look, View(answers[-1]), [see])
                done.set()

            batch = self._channel.post(*requests, ChildNames(node.parent, None), proof=True, then=both)
            self._subscription.looks.begin(node.parent, look)
        else:

            def see_last(view: View) -> None:
                see(view)
                done.set()

            def first(answers: list[Any]) -> None:
                if land(answers[-1]):
                    self._subscription.looks.look(node.parent, see_last)
                else:
                    done.set()

            batch = self._channel.post(*requests, proof=True, then=first)
        if not await done.wait(until):
            raise self._channel.no_answer()
        answer = batch.answers[len(requests) - 1]
        return seen[0]._replace(answer=answer) if seen else MadeNode(answer, None, False)

    def _land(self, node: OwnNode, sent: float, made: Any) -> bool:
        """In kazoo's thread: the node is made; whether it is ours to stand in the line with."""
        if not isinstance(made, tuple):
            return False
        node.path, stat = made
        if node.withdrawn:
            # The caller had given up before the request got through.
            self._claims.leave_behind(node)
            return False
        return self._begin(node, stat, sent)

    def _see(self, node: OwnNode, wait: bool, view: View) -> bool:
        """In kazoo's thread: where the new claim stands, and whether it holds. Whoever must wait watches at once what decides
        its turn.
        """
        if view.names is None or node.path is None or node.withdrawn or node.gone or node.session is None:
            return False
        node.take_in(*view.place_of(node))
        holds = node.holds
        if wait:
            self._subscription.watch(node)
        return holds

    def _begin(self, node: OwnNode, stat: Any, sent: float) -> bool:
        """Whether the node belongs to the session that we have now: only then it is ours to hold."""
        session = self._channel.session
        if session is None or session.ended or stat.ephemeralOwner != session.id:
            return False
        node.begin(session, stat.czxid, sent)
        return True

    async def _find(self, node: OwnNode, until: float) -> bool:
        """Whether the claim stands in the line already: then the reply to an earlier request was lost."""
        while True:
            sent = self._runtime.now()
            line = await self._commands.line(node.claim.name, until, tried=True)
            at = next((at for at, place in enumerate(line) if place.id == node.claim.id), None)
            if at is None:
                return False
            path = f"{node.parent}/{line[at].node}"
            await self._channel.connected(None, until, tried=True)
            (stat,) = await self._channel.ask(Exists(path, None), until=until)
            if isinstance(stat, CUT) or stat is None:
                continue
            checked(stat)
            node.path = path
            if self._begin(node, stat, sent):
                node.take_in(line, at)
                node.stale = not node.holds
                self._channel.alarm(node.expires)
                return True
            # Made by a session of ours that has ended; it goes with that, or now.
            node.path = None
            (answer,) = await self._channel.ask(Delete(path, -1), until=until)
            if not isinstance(answer, (*CUT, problems.NoNodeError)):
                checked(answer)
