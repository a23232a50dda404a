"""The session that carries a client's claims, until when it may be trusted with no further word, and when to leave its server.

What has to be known is a moment at which the *leader* has certainly heard of us: it ends the session a timeout T after the last
such moment, by its own clock. It hears of a session in two ways only:

- by the request that makes a connection: the server passes it on to the leader before it answers;
- by reports: each half tick the leader pings a server, and the server's reply names the sessions that it has heard of since
  the last one. A request, even a write, is news to the server that gets it, and to the leader only by the next report.

The client sees neither pings nor reports, and any link and any process may stall and go on at any time. All it sees is that a
write was sent (s) and that its answer came (a). What it may conclude, from three writes on one connection, is this:

    W1: s1 … a1        W2: s2 … a2, with s2 >= a1 + REPORT * T        W3: s3 … a3, with s3 >= a2

1. The leader committed W1 before a1 and W2 after s2. These lie further apart than the leader's pings do, so it sent a ping P in
   between. What it sends to a server arrives in order: the server handled the commit of W1, then P, then the commit of W2.
2. The server had got W1 when it handled P. So the reply to P names the session, and it counts from s1 or later.
3. That reply was on its way before W2 was answered, and W3 was sent after that. What a server sends to the leader arrives in
   order too: the leader had the report when it committed W3.
4. So at a3 it is certain that the leader does not end the session before s1 + T.

How long anything was under way does not matter anywhere. Had we counted what was *sent* long enough before W2, then a way to the
server that stalls and is then let go would bring touch and write at the same moment, with no ping in between. Had we counted
what was *answered* long enough before W2, then a stalled way from the leader would bring ping and commit at the same moment,
and a cut could still take the report away: W3 is there for that.

What is taken for granted: a session lasts two ticks or more, so that REPORT * T is half a tick and an eighth of one for a leader
that is late with its ping; and a leader that stood still as a whole sends the ping that is due before it commits anything new
(the one takes a wake-up, the other a disk and a majority). Another leader gives every session its whole time from its own
beginning, and a server that changes its leader closes its connections, so all three writes speak of one leader.
"""

from __future__ import annotations

import select
import threading
import weakref
from collections import deque
from typing import Any, Final, Protocol

from kazoo.client import KazooClient

from ...core.claim import Ceiling
from ...errors import BackendUnavailable
from ...runtime.clock import validity
from .answers import CUT, RequestBatch

REPORT: Final = 5 / 16
"""The share of the timeout in which the leader certainly pings a server: half a tick of at most T/2, and an eighth of one more."""
PROOFS: Final = 8
"""How often in one timeout a majority is asked to confirm a session that carries claims. The ceiling is then at least a third of
the timeout away while all is well, and a server that hangs can be left in time."""
SPARE: Final = 1 / 4
"""With less than this share of the timeout left, the write that completes a proof does not wait for its turn."""
KEPT: Final = 64
"""How many writes per timeout are remembered, of a client that makes many more."""
SHARE: Final = 1 / 5
"""The share of a session's timeout for which a server may owe an answer: what is left of a session that was confirmed regularly
(a third of its timeout, and more) is then enough to go to another server and have it confirmed there."""
MOST: Final = 2 / 3
"""The same for a server that is known to be slow; kazoo's own measure."""
SLOWER: Final = 3
"""How many times the time of its slowest answers a server may take before it counts as silent."""
MOST_PATHS: Final = 1_000_000
"""Bytes of the paths of one session's nodes. The end of a session is one transaction that names them all, and the servers do not
check its size: above `jute.maxbuffer` (1,048,575) they cannot read it again, stop, and do not start any more."""


class SessionFull(BackendUnavailable):
    """The session of this client carries as many claims as the servers can end together."""

    permanent = True
    unsent = True


class Load(Protocol):
    """What one client of Lockline has in a session."""

    def path_bytes(self) -> int:
        """Of all its nodes."""


class PathBudget:
    """The bytes of the paths that one session carries, whatever number of Lockline's clients share its connection."""

    def __init__(self) -> None:
        self._loads: weakref.WeakSet[Load] = weakref.WeakSet()
        self._left = 0
        """What is left at least: nothing is given back, and where it is spent all is counted anew."""
        self._mutex = threading.Lock()

    def share(self, load: Load) -> None:
        """Count what this one has, too."""
        with self._mutex:
            self._loads.add(load)

    def take(self, size: int) -> None:
        """Count a node that its client knows of already; SessionFull, before anything is sent, if it would be too much."""
        with self._mutex:
            self._left -= size
            if self._left < 0:
                self._left = MOST_PATHS - sum(load.path_bytes() for load in self._loads)
            if self._left < 0:
                raise SessionFull(
                    f"the session of this client would hold more than {MOST_PATHS} bytes of paths, and ZooKeeper's servers "
                    "fail at the end of such a session; use shorter names, or a second client for the other locks"
                )


class Session:
    """One session. `ceiling` is the moment after which the ensemble may end it without our hearing of it."""

    def __init__(self, session_id: int, timeout: float, asked: int, sent: float) -> None:
        self.id = session_id
        self.asked = asked
        """The timeout that was asked for, in milliseconds."""
        self.timeout = timeout
        """The timeout that the server granted, in seconds."""
        self.ceiling = Ceiling(0.0)
        self._pings = timeout * REPORT
        """The time in which the leader certainly pings our server, by the timeout that was granted last."""
        self._connected = sent
        self._last_proof = 0.0
        self._written: deque[tuple[float, float]] = deque()
        """Writes on this connection: when the answer came, when it was sent. Each may be a W1."""
        self._reported: deque[tuple[float, float]] = deque()
        """When the answer to a W2 came, and when its W1 was sent."""
        self._ended = False
        self.reconnecting = False
        """Whether its connection was closed on purpose, and the next one has to be waited for."""
        self._mutex = threading.Lock()

    @property
    def ended(self) -> bool:
        """Whether the ensemble has ended it, or we have given it up."""
        return self._ended

    def connected(self, sent: float, timeout: float, asked: int) -> None:
        """A connection was made for this session by a request sent then; the timeout counts anew from there."""
        with self._mutex:
            if timeout < self.timeout:
                # By another server, with another limit: the leader has heard of the shorter one.
                self.ceiling.until = min(self.ceiling.until, sent + validity(timeout))
            self._connected = sent
            self.reconnecting = False
            self._last_proof = 0.0
            # All that is older than this connection: nothing of it could count for more than the connecting itself.
            self._written.clear()
            self._reported.clear()
            self.timeout, self.asked = timeout, asked
            self._pings = timeout * REPORT

    def lower(self, timeout: float, now: float) -> None:
        """A shorter timeout will be asked for: from now on nothing beyond it is trusted, whether the answer comes or not."""
        with self._mutex:
            self.timeout = min(self.timeout, timeout)
            self.ceiling.until = min(self.ceiling.until, now + validity(self.timeout))

    def proving(self, sent: float) -> None:
        """A write goes out now; the next one for the session's own sake is not due for a while."""
        self._last_proof = max(self._last_proof, sent)

    def due(self, now: float) -> float:
        """When the next write is due that keeps this session confirmed."""
        if self._reported and self.ceiling.until - now < self.timeout * SPARE:
            answered, since = self._reported[-1]
            if self._last_proof < answered and since + validity(self.timeout) > self.ceiling.until:
                return now
        return self._last_proof + self.timeout / PROOFS

    def idle_for_long(self, now: float) -> bool:
        """Whether a claim that is made now could not be trusted: nothing was written for so long that one write confirms nothing new."""
        with self._mutex:
            since = max(self._connected, self._reported[-1][1] if self._reported else 0.0)
            return max(self.ceiling.until, since + validity(self.timeout)) < now + self.timeout * SPARE

    def confirm(self, sent: float, answered: float) -> None:
        """A majority confirmed a write on this connection: the session lives on from what the leader must have heard by then."""
        with self._mutex:
            if self._ended:
                return
            # As W3, or as the first write of all: the connecting itself has been heard of.
            since = max(self._connected, _last_before(self._reported, sent))
            self.ceiling.until = max(self.ceiling.until, since + validity(self.timeout))
            # As W2.
            told = _last_before(self._written, sent - self._pings)
            if told and (not self._reported or told > self._reported[-1][1]):
                self._reported.append((answered, told))
            # As W1.
            if not self._written or answered - self._written[-1][0] >= self.timeout / KEPT:
                self._written.append((answered, sent))

    def end(self) -> None:
        """It is over: every claim in it is lost at once."""
        with self._mutex:
            self._ended = True
            self.ceiling.until = 0.0


def _last_before(pairs: deque[tuple[float, float]], moment: float) -> float:
    """What stands with the last of these answers that came before then; what stands before that one is dropped."""
    while len(pairs) > 1 and pairs[1][0] <= moment:
        pairs.popleft()
    return pairs[0][1] if pairs and pairs[0][0] <= moment else 0.0


class OwedAnswers:
    """What the server in use owes: whether it has fallen silent, which is to say owes answers and none comes.

    kazoo notices that by its own ping, but it pings only where nothing else is sent, and a lock that is held, or asked for again
    and again, sends all the time. A server that hangs would be kept for ever, although others are well.
    """

    def __init__(self, client: KazooClient) -> None:
        self._client = client
        self._owed: dict[RequestBatch, None] = {}
        """In order of asking, which is the order of answers too."""
        self._heard = 0.0
        self._slow = 0.0
        """What the slowest answers take, forgotten bit by bit."""
        self._left = 0
        """How often in a row a server was left before it had answered anything."""
        self._timeout = 1.0
        self.line: Any = None
        """The connection that all this is about."""

    def __bool__(self) -> bool:
        return bool(self._owed)

    def connected(self, now: float) -> None:
        """In kazoo's thread: there is a new connection."""
        self._heard = now
        self.line = self._client._connection._socket

    def asked(self, batch: RequestBatch) -> bool:
        """Note what was asked; whether it is the first that is owed."""
        first = not self._owed
        self._owed[batch] = None
        return first

    def answered(self, batch: RequestBatch, now: float) -> None:
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
