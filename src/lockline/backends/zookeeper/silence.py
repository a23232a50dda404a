"""Whether the server in use has fallen silent: it owes answers, and none comes.

kazoo notices that by its own ping, but it pings only where nothing else is sent, and a lock that is held, or asked for again and
again, sends all the time. A server that hangs would be kept for ever, although others are well.
"""

from __future__ import annotations

import select
from typing import Any

from kazoo.client import KazooClient

from .batch import CUT, Batch

SHARE = 1 / 5
"""The share of a session's timeout for which a server may owe an answer: what is left of a session that was confirmed regularly
(a third of its timeout, and more) is then enough to go to another server and have it confirmed there."""
MOST = 2 / 3
"""The same for a server that is known to be slow; kazoo's own measure."""
SLOWER = 3
"""How many times the time of its slowest answers a server may take before it counts as silent."""


class Silence:
    """What one connection owes."""

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._owed: dict[Batch, None] = {}
        """In order of asking, which is the order of answers too."""
        self._heard = 0.0
        self._slow = 0.0
        """What the slowest answers take, forgotten bit by bit."""
        self._left = 0
        """How often in a row a server was left before it had answered anything."""
        self._timeout = 1.0
        self.line: Any = None
        """The connection that all this is about."""

    def connected(self, now: float) -> None:
        """In kazoo's thread: there is a new connection."""
        self._heard = now
        self.line = self._client._connection._socket

    def asked(self, batch: Batch) -> bool:
        """Note what was asked; whether it is the first that is owed."""
        first = not self._owed
        self._owed[batch] = None
        return first

    def answered(self, batch: Batch, now: float) -> None:
        """In kazoo's thread: note that this is no longer owed."""
        self._owed.pop(batch, None)
        if not isinstance(batch.answers[0], CUT):
            self._left = 0
            # The head of the line counts from the answer before it: what piles up on our side is not the server's delay.
            self._slow = max(now - max(batch.sent, self._heard), self._slow * 0.98)
            self._heard = now

    def limit(self, since: float) -> float:
        """When a server that has owed an answer since then has owed it for too long."""
        patience = max(self._timeout * SHARE, self._slow * SLOWER) * 2.0**self._left
        return since + min(patience, max(self._timeout * MOST, 0.1))

    def look(self, now: float, timeout: float) -> tuple[bool, float]:
        """Whether to leave the server, and when to look again."""
        self._timeout = timeout
        try:
            oldest = next(iter(self._owed), None)
        except RuntimeError:
            # Something was answered at this very moment.
            return False, now + timeout * SHARE / 4
        if oldest is None:
            return False, float("inf")
        limit = self.limit(max(oldest.sent, self._heard))
        if now < limit:
            return False, limit
        if not self._client._pending or self._has_come():
            # We are late ourselves: it was not sent yet, or the answer lies here unread.
            return False, now + timeout * SHARE / 4
        # All may be slow together: each that is left without a word gets twice the time.
        self._left += 1
        self._heard = now
        return True, self.limit(now)

    def _has_come(self) -> bool:
        line = self.line
        try:
            if line is None or line.pending():
                return True
        except (AttributeError, OSError, ValueError):
            pass
        try:
            look = select.poll()
            look.register(line, select.POLLIN)
            return bool(look.poll(0))
        except (OSError, ValueError):
            # Closed meanwhile: kazoo knows.
            return True
