"""Hints by publish: any node tells that a lease ended there, or that one was evicted. A hint only shortens a wait.

A release is heard from every node; waiters are woken once, when enough nodes have told of it that an attempt can succeed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..resp.commands import ServerError
from .rules import majority
from .scripts import FREED, VICTIM
from .target import Node

REMEMBERED: Final = 10_000
"""Releases that not every node has told of; many names may be freed at once, and each node tells of all before the next one does."""
RETRY: Final = 1.0
"""Seconds after which a node that cannot be listened to is tried again."""

Hearer = Callable[[str], None]


class HeardReleases:
    """Which releases have been heard of, and from how many nodes."""

    def __init__(self, nodes: int, freed: Hearer, victim: Hearer) -> None:
        self._nodes = nodes
        self._needed = majority(nodes)
        self._freed = freed
        self._victim = victim
        self._heard: OrderedDict[tuple[str, bytes], int] = OrderedDict()

    def take(self, channel: str, payload: bytes, listening: int) -> None:
        """One message, heard while so many nodes are listened to."""
        if channel.startswith(VICTIM):
            # Whoever may publish may publish anything.
            self._victim(payload.decode(errors="replace"))
            return
        key = (channel, payload)
        count = self._heard[key] = self._heard.get(key, 0) + 1
        if count == self._nodes:
            del self._heard[key]
        elif len(self._heard) > REMEMBERED:
            self._heard.popitem(last=False)
        # With fewer nodes in earshot than a majority, the first word has to do.
        if count == min(self._needed, max(1, listening)):
            self._freed(channel[len(FREED) :])


class HintSource:
    """The channels that are listened to, whoever confirmed it, and what was heard; a flavour brings the connections."""

    def __init__(self, nodes: Sequence[Node], timeout: float, freed: Hearer, victim: Hearer) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self._releases = HeardReleases(len(nodes), freed, victim)
        self._begin()

    def _begin(self) -> None:
        self._channels: dict[str, int] = {}
        """How many listen to each."""
        self._unconfirmed: dict[str, set[int]] = {}
        """Where it was asked for, and the node has not said yes."""

    def _listened_to(self) -> list[int]:
        """The nodes that there is a connection to."""
        raise NotImplementedError

    def _say(self, node: int, *words: str) -> bool:
        """Whether it could be sent."""
        raise NotImplementedError

    def _something_confirmed(self) -> None:
        """Wake those who wait in `subscribe`."""
        raise NotImplementedError

    def _add(self, channel: str) -> None:
        self._channels[channel] = self._channels.get(channel, 0) + 1
        if self._channels[channel] == 1:
            self._unconfirmed[channel] = set()
            for node in self._listened_to():
                self._ask_for(node, channel)

    def _ask_for(self, node: int, channel: str) -> None:
        if self._say(node, "SUBSCRIBE", channel):
            self._unconfirmed.setdefault(channel, set()).add(node)

    def _remove(self, channel: str) -> None:
        left = self._channels.get(channel, 0) - 1
        if left > 0:
            self._channels[channel] = left
        elif left == 0:
            del self._channels[channel]
            self._unconfirmed.pop(channel, None)
            for node in self._listened_to():
                self._say(node, "UNSUBSCRIBE", channel)

    def _hear(self, node: int, message: Any) -> None:
        """Take one push."""
        if isinstance(message, ServerError):
            # This user may not listen: there is nothing to wait for here.
            self._confirm(node)
        elif isinstance(message, list) and len(message) == 3:
            kind, channel, payload = message
            if kind == b"message":
                self._releases.take(channel.decode(), payload, len(self._listened_to()))
            elif kind == b"subscribe":
                self._confirm(node, channel.decode())

    def _confirm(self, node: int, channel: str | None = None) -> None:
        """The node listens for us there; without a channel, nothing more is to be expected of it."""
        for name, waiting in list(self._unconfirmed.items()):
            if channel is None or name == channel:
                waiting.discard(node)
        self._something_confirmed()
