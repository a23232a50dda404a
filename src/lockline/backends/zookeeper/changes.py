"""Changes of lines, for one who stands in none: ZooKeeper's own watch on the folder of a line, set anew after each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo import exceptions as problems
from kazoo.protocol.serialization import Exists, GetChildren
from kazoo.protocol.states import EventType

from ...core.waiting import begun
from ..watchers import Watchers
from .channel import KazooChannel


class FolderChanges:
    """The folders that one client watches. `heard` is told whom a change concerns, and who will be told of the next."""

    def __init__(self, channel: KazooChannel, chroot: str, heard: Callable[[str], None]) -> None:
        self._channel = channel
        self._chroot = chroot
        self._heard = heard
        self._watchers: Watchers[str] = Watchers()

    def watch(self, parent: str, watcher: str) -> None:
        """Tell this one of the next change below the parent."""
        # First: the event may be here before the answer is.
        self._watchers.add(parent, watcher)

        def answered(answers: list[Any]) -> None:
            if isinstance(answers[0], problems.NoNodeError):
                # Nobody stands there: then the folder is watched for. A watch of the same callback is one, however often it is set.
                self._channel.post(Exists(parent, self._on_event), then=lambda _: self._heard(begun(watcher)))
            else:
                self._heard(begun(watcher))

        self._channel.post(GetChildren(parent, self._on_event), then=answered)

    def unwatch(self, watcher: str) -> None:
        """Nobody is there to be told any more; the watch itself ends with the next change."""
        self._watchers.discard(watcher)

    def _on_event(self, event: Any) -> None:
        # A lost connection is told by others, to all.
        if event.type != EventType.NONE:
            for watcher in self._watchers.take(self._chroot + event.path):
                self._heard(watcher)
