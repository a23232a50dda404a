"""The session that carries a client's claims, and until when it may be trusted with no further word."""

from __future__ import annotations

import threading
from collections import deque

from ...core.clock import validity
from ...core.live import Ceiling

REPORT = 1 / 4
"""The share of the timeout by which the leader may lag behind what a follower has heard of a session.

A follower tells the leader which sessions are alive when the leader pings it, every half tick, and a session lasts at least
two ticks unless the ensemble was told otherwise. A follower that is cut off takes up to half a tick of that news with it.
"""
TOUCHES = 8
"""How often in one timeout a session that carries claims is touched."""
PROOFS = 4
"""How often in one timeout a majority is asked to confirm it."""


class Session:
    """One session. `ceiling` is the moment after which the ensemble may end it without our hearing of it."""

    def __init__(self, session_id: int, timeout: float, asked: int, sent: float) -> None:
        self.id = session_id
        self.asked = asked
        """The timeout that was asked for, in milliseconds."""
        self.timeout = timeout
        """The timeout that the server granted, in seconds."""
        self.ceiling = Ceiling(0.0)
        self.last_sent = sent
        self.last_proof = 0.0
        self._connected = sent
        self._sends: deque[float] = deque(maxlen=4 * TOUCHES)
        self._ended = False
        self._mutex = threading.Lock()

    @property
    def ended(self) -> bool:
        """Whether the ensemble has ended it, or we have given it up."""
        return self._ended

    def connected(self, sent: float, timeout: float, asked: int) -> None:
        """A connection was made for this session by a request sent then; the timeout counts anew from there."""
        with self._mutex:
            self._connected = self.last_sent = sent
            self._sends.clear()
            self.timeout, self.asked = timeout, asked

    def lower(self, timeout: float, now: float) -> None:
        """A shorter timeout will be asked for: from now on nothing beyond it is trusted, whether the answer comes or not."""
        with self._mutex:
            self.timeout = min(self.timeout, timeout)
            self.ceiling.until = min(self.ceiling.until, now + validity(self.timeout))

    def touch(self, sent: float) -> None:
        """A request goes out now. The server that gets it knows then that we are alive."""
        self.last_sent = sent
        if not self._sends or sent - self._sends[-1] >= self.timeout / (2 * TOUCHES):
            self._sends.append(sent)

    def confirm(self, sent: float) -> None:
        """A majority confirmed a request that was sent then: the session lives on from the last news that the leader
        must have had by then.

        That is not this request: the leader counts from what followers report. It has heard of everything that was sent on
        this connection long enough before, and of the connecting itself, because that goes to the leader at once.
        """
        with self._mutex:
            if self._ended:
                return
            reported = sent - self.timeout * REPORT
            since = self._connected
            for moment in self._sends:
                if moment > reported:
                    break
                since = max(since, moment)
            self.ceiling.until = max(self.ceiling.until, since + validity(self.timeout))
            self.last_proof = max(self.last_proof, sent)

    def end(self) -> None:
        """It is over: every claim in it is lost at once."""
        with self._mutex:
            self._ended = True
            self.ceiling.until = 0.0
