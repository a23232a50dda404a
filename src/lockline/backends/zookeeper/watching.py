"""Who waits for what: each claim watches only the nodes that decide its turn, and each holder its own.

All of this runs in kazoo's thread, one step after the other: a waiter is woken when its turn has come, and not for each step
on the way there. Where the user's own kazoo client brings several threads it is still safe: what is known of a line ahead can
only err by what has left it already.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from kazoo import exceptions as problems
from kazoo.protocol.serialization import GetData
from kazoo.protocol.states import EventType

from ...runtime import Mailbox
from .looks import Looks, View
from .node import Node
from .wire import Wire

FEW = 64
"""How many departures from a line are remembered at least, beside two for each of ours that waits there."""


class Watching:
    """The watches of one client."""

    def __init__(
        self, wire: Wire, looks: Looks, mailbox: Mailbox, nodes: dict[str, Node], news: set[str], chroot: str
    ) -> None:
        self._wire = wire
        self._mailbox = mailbox
        self._nodes = nodes
        self._news = news
        self._chroot = chroot
        self._looks = looks
        self._waiters: dict[str, set[str]] = {}
        self._gone: dict[str, set[str]] = {}
        """Nodes of a line that have left it, as long as somebody of ours waits there: what one hears of, all know."""
        self._waiting: dict[str, set[str]] = {}
        """Who of ours waits in a line."""
        self._own: dict[str, str] = {}

    def forget_all(self) -> None:
        """The connection was lost, and with it every watch."""
        self._waiters.clear()
        self._own.clear()
        self._gone.clear()
        self._waiting.clear()

    def forget(self, node: Node) -> None:
        """This claim has been removed by ourselves."""
        if node.path is not None:
            self._own.pop(node.path, None)
        for name in tuple(node.watched):
            # An empty set stays for as long as that watch does: kazoo's thread may be adding to it.
            self._waiters.get(f"{node.parent}/{name}", set()).discard(node.claim.id)
        waiting = self._waiting.get(node.parent)
        if waiting is not None:
            waiting.discard(node.claim.id)
            if not waiting:
                self._waiting.pop(node.parent, None)
                self._gone.pop(node.parent, None)

    def looked(self, node: Node, view: View) -> None:
        """The line was read again."""
        if view.line is None:
            node.stale = True
        else:
            node.stale = False
            node.stand(view.line, view.places.get(node.claim.id))
        self._go_on(node)

    def watch(self, node: Node) -> None:
        """Watch what decides this claim's turn, and nothing else."""
        if node.holds or node.gone or node.withdrawn:
            return
        wanted = node.to_watch()
        if not wanted:
            return
        self._waiting.setdefault(node.parent, set()).add(node.claim.id)
        for name in wanted:
            # Before the request goes out: the event may be here before its answer is.
            node.watched.add(name)
            self._waiters.setdefault(f"{node.parent}/{name}", set()).add(node.claim.id)
        # `get`, not `exists`: a watch on what has gone meanwhile would stay for ever.
        self._wire.post(
            *(GetData(f"{node.parent}/{name}", self._event) for name in wanted),
            then=partial(self._watched, node, wanted),
        )

    def watch_own(self, node: Node) -> None:
        """Hear of the eviction of a claim that holds."""
        assert node.path is not None
        node.own_watch = True
        self._own[node.path] = node.claim.id
        self._wire.post(GetData(node.path, self._event), then=partial(self._watched_own, node))

    def _watched(self, node: Node, names: list[str], answers: list[Any]) -> None:
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, problems.NoNodeError):
                # No watch was set, so no event will come and take this along.
                for waiter in self._living({node.claim.id, *self._waiters.pop(f"{node.parent}/{name}", ())}):
                    self._left(waiter, name)
            elif isinstance(answer, Exception):
                node.stale = True
                self._go_on(node)

    def _watched_own(self, node: Node, answers: list[Any]) -> None:
        if isinstance(answers[0], problems.NoNodeError):
            self._news.add(node.claim.id)
        elif isinstance(answers[0], Exception):
            node.own_watch = False

    def _left(self, node: Node, name: str) -> None:
        """A deletion is the ensemble's own decision and there is no way back into the line, so it counts as it is."""
        if node.withdrawn or node.gone:
            return
        node.watched.discard(name)
        gone = self._gone.setdefault(node.parent, set())
        gone.add(name)
        node.ahead_left(gone)
        self._remember_few(node.parent, gone)
        if node.holds:
            self._go_on(node)
        else:
            # Who stood ahead of that one may have left unwatched.
            self._looks.look(node.parent, partial(self.looked, node))

    def _living(self, claim_ids: Iterable[str]) -> list[Node]:
        """Those that still stand in their line, with a place that is known."""
        nodes = [self._nodes.get(claim_id) for claim_id in tuple(claim_ids)]
        return [node for node in nodes if node is not None and not node.gone and node.mine is not None]

    def _remember_few(self, parent: str, gone: set[str]) -> None:
        """In a line where somebody of ours always waits, nobody would ever forget who has left it.

        So at times each that waits takes in what has gone; who comes later reads a line without those.
        """
        waiting = self._waiting.get(parent, set())
        if len(gone) <= FEW + 2 * len(waiting):
            return
        for node in self._living(waiting):
            held = node.holds
            node.ahead_left(gone)
            if node.holds and not held:
                self._go_on(node)
        gone.clear()

    def _go_on(self, node: Node) -> None:
        if node.holds or node.stale or node.gone:
            self._mailbox.deliver(node.claim.id)
        else:
            self.watch(node)

    def _event(self, event: Any) -> None:
        """A node that somebody watches has gone or changed."""
        if event.type == EventType.NONE:
            return
        path = self._chroot + event.path
        name = path.rpartition("/")[2]
        deleted = event.type == EventType.DELETED
        for node in self._living(self._waiters.pop(path, ())):
            if deleted:
                self._left(node, name)
            else:
                node.stale = True
                node.watched.discard(name)
                self._go_on(node)
        own = self._own.pop(path, None)
        if own is not None and own in self._nodes:
            self._nodes[own].own_watch = False
            if deleted:
                self._news.add(own)
