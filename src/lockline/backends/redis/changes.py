"""How a server tells of changes one who stands in no line: a connection of the client's on which it remembers what was read there.

`CLIENT TRACKING` (Redis 6 and later): whoever changes a key that was read on such a connection makes the server say so there, once.
So a line that nobody watches costs nobody anything, and no step has to know of those who watch. A server that refuses it (an
older one, a proxy, a user without that right) is looked at now and then instead.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from ...core.waiting import begun
from ..resp.commands import HELLO, ServerError, pack
from ..resp.errors import NoAnswer
from ..resp.subscription import BlockingSubscription
from ..resp.target import Server
from ..watchers import Watchers

BEGINNING: Final = HELLO + pack(("CLIENT", "TRACKING", "ON"))
"""Both at once: the answers are counted by `Tracked`."""
CHANGED: Final = b"invalidate"
PONG: Final = b"PONG"


class Tracked:
    """What was asked for on such a connection, and whom an answer or a word of the server is for."""

    def __init__(self) -> None:
        self.refused = False
        """Whether the server does not do this."""
        self.watching: set[str] = set()
        self._unanswered: deque[tuple[bytes, str]] = deque([(b"", ""), (b"", "")])
        """In the order of the requests; the first two are those of `BEGINNING`."""
        self._watchers: Watchers[str] = Watchers()

    def ask(self, key: bytes, watcher: str) -> bytes:
        """The request that has the server remember; nothing, if it does already."""
        self.watching.add(watcher)
        if self._watchers.has(key, watcher):
            return b""
        self._unanswered.append((key, watcher))
        # What is read does not matter; a foreign key of another type is refused by the look as well.
        return pack(("HGET", key, "last"))

    def take(self, reply: Any) -> list[str]:
        """Whom this concerns."""
        if isinstance(reply, list) and reply and reply[0] == CHANGED:
            if reply[1] is None:
                # All keys at once: flushed, or too many to be remembered.
                return self._watchers.take_all()
            return [watcher for key in reply[1] for watcher in self._watchers.take(key)]
        if reply == PONG or isinstance(reply, list) or not self._unanswered:
            return []
        key, watcher = self._unanswered.popleft()
        if isinstance(reply, ServerError):
            # A key that is elsewhere by now, say: whoever looks finds out where.
            self.refused = self.refused or not watcher
        elif watcher in self.watching:
            self._watchers.add(key, watcher)
        if watcher not in self.watching:
            return []
        # Where nothing will be told, it asks once more, and is told so.
        return [begun(watcher), watcher] if self.refused else [begun(watcher)]

    def end(self) -> list[str]:
        """Whom to tell that the server remembers nothing any more."""
        return [hint for watcher in list(self.watching) for hint in (begun(watcher), watcher)]

    def drop(self, watcher: str) -> bool:
        """Nobody is there to be told any more; whether it was the last one."""
        self._watchers.discard(watcher)
        if watcher not in self.watching:
            return False
        self.watching.discard(watcher)
        return not self.watching


class BlockingTracker(BlockingSubscription):
    """One that is read with the subscriptions of its client."""

    __slots__ = ("tracked",)

    def __init__(self, server: Server, until: float) -> None:
        super().__init__(server, until)
        self.tracked = Tracked()
        try:
            self.send(BEGINNING)
        except OSError as problem:
            self.close()
            raise NoAnswer(self.address, problem, sent=False) from problem
