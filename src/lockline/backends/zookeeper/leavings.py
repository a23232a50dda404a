"""Nodes that must go and have not gone for sure: asked for again on each new connection of the session that made them.

A node does not die with its claim's ttl, as a key with an expiry would: while its session lives, it stands until somebody
removes it. So what nobody waits for any more is not forgotten before the ensemble has answered, not even by a client that is
closed meanwhile and leaves the user's own kazoo client behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from kazoo.protocol.serialization import Delete, GetChildren, Sync
from kazoo.protocol.states import KazooState

from .batch import CUT
from .line import read_line
from .node import Node
from .wire import Wire


class Leavings:
    """The nodes that one client has left behind."""

    def __init__(self, wire: Wire, forget: Callable[[Node], None]) -> None:
        self._wire = wire
        self._forget = forget
        self._left: dict[Node, int | None] = {}
        self._mutex = threading.Lock()
        wire.owes = lambda: bool(self._left)

    def add(self, node: Node) -> None:
        """Have this node removed, now or as soon as there is a connection again."""
        client = self._wire.client
        with self._mutex:
            self._left[node] = client._session_id if node.session is None else node.session.id
            client.add_listener(self._on_state)
        self._ask(node)

    def _ask(self, node: Node) -> None:
        if node.path is None:
            # Its create had no answer. On this session the list comes after it, on a new connection after a sync.
            self._wire.post(Sync(node.parent), GetChildren(node.parent, None), then=partial(self._looked, node))
        else:
            self._delete(node, node.paths)

    def _looked(self, node: Node, answers: list[Any]) -> None:
        if any(isinstance(answer, CUT) for answer in answers):
            return
        line = read_line(answers[1]) if isinstance(answers[1], list) else []
        found = [f"{node.parent}/{place.node}" for place in line if place.id == node.claim.id]
        if found:
            self._delete(node, found)
        else:
            self._gone(node)

    def _delete(self, node: Node, paths: list[str]) -> None:
        self._wire.post(*(Delete(path, -1) for path in paths), then=partial(self._deleted, node))

    def _deleted(self, node: Node, answers: list[Any]) -> None:
        if not any(isinstance(answer, CUT) for answer in answers):
            self._gone(node)

    def _gone(self, node: Node) -> None:
        with self._mutex:
            self._left.pop(node, None)
            if not self._left:
                self._wire.client.remove_listener(self._on_state)
        self._wire.let_go()
        if node.withdrawn:
            self._forget(node)

    def _on_state(self, state: str) -> None:
        """In kazoo's thread: what was cut is asked for again; what was made by a session that has ended went with it."""
        if state == KazooState.SUSPENDED:
            return
        for node, session in list(self._left.items()):
            if state == KazooState.CONNECTED and session == self._wire.client._session_id:
                self._ask(node)
            else:
                self._gone(node)
