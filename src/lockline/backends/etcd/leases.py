"""etcd's leases of one client: one for each length of ttl in use, kept alive by what the keeper asks for.

A lease is trusted only as far as a confirmed renewal reaches. etcd renews a lease at its leader without asking the others, so a
leader that was deposed without knowing it (frozen, cut off) may say yes to a renewal that the new leader never
heard of. So a renewal counts only when an answer that a quorum stands behind, asked for after it, comes from the same term.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Final

from ...core.runtime import Runtime
from ...errors import BackendUnavailable
from . import channel as ways
from . import messages as m
from .channel import Channel
from .gate import gate_for

SLACK: Final = 1.1
"""A lease lasts this much longer than the ttl, so that claims that come shortly after a renewal need none of their own."""


class Lease:
    """One lease at the server."""

    __slots__ = ("dead", "generation", "good_until", "id", "present", "seconds")

    def __init__(self, id: int, seconds: int, good_until: float) -> None:
        self.id = id
        self.seconds = seconds
        self.good_until = good_until
        """Until when it lives at least, by our clock and by what was confirmed."""
        self.dead = False
        self.present = False
        """Whether its session key has been put."""
        self.generation = 0
        """The session key's revision; a withdrawn claim that is still on its way carries an older one."""


NO_LEASE: Final = Lease(0, 0, 0.0)
"""For a claim of which this client knows nothing."""


class Renewal:
    """Leases renewed at a moment, in a term; good when that term is confirmed."""

    __slots__ = ("leases", "sent", "term")

    def __init__(self, leases: Collection[Lease], sent: float, term: int | None) -> None:
        self.leases = leases
        self.sent = sent
        self.term = term

    def confirm(self, term: int) -> bool:
        """A quorum answered in this term, later: whether the renewal counts."""
        if self.term is None:
            return True
        if self.term != term:
            return False
        for lease in self.leases:
            lease.good_until = max(lease.good_until, self.sent + lease.seconds)
        return True


def lease_seconds(ttl: float) -> int:
    """The length of the lease for claims of this ttl: whole seconds, in steps that keep the number of leases small."""
    seconds = max(1, math.ceil(ttl * SLACK))
    step = int(10 ** max(0, len(str(seconds)) - 2))
    return -(-seconds // step) * step


class Leases:
    """The leases of one client."""

    def __init__(self, channel: Channel, runtime: Runtime, died: Callable[[Lease], None]) -> None:
        self._channel = channel
        self._runtime = runtime
        self._died = died
        self.reset()

    def reset(self) -> None:
        """As new: in a forked child the leases are the parent's."""
        self._leases: dict[int, Lease] = {}
        self._gate = gate_for(self._runtime)

    def all(self) -> list[Lease]:
        return list(self._leases.values())

    async def ready(self, ttl: float, until: float) -> tuple[Lease, Renewal]:
        """A lease that outlives a claim of this ttl made now, once the renewal that comes with it is confirmed."""
        wanted = lease_seconds(ttl)
        while True:
            lease = self._leases.get(wanted)
            if lease is None:
                lease = await self._granted(wanted, until)
            if lease.good_until >= self._runtime.now() + ttl:
                return lease, Renewal((), 0.0, None)
            renewal = await self.renew([lease], until)
            if not lease.dead:
                return lease, renewal

    async def _granted(self, seconds: int, until: float) -> Lease:
        async with self._gate(until) as free:
            if not free:
                raise BackendUnavailable("another request of this client still waits for a lease")
            lease = self._leases.get(seconds)
            if lease is None:
                sent = self._runtime.now()
                answer = await self._channel.ask(
                    ways.GRANT, m.LeaseGrantRequest(TTL=seconds), "LeaseGrantResponse", until
                )
                lease = self._leases[seconds] = Lease(answer.ID, answer.TTL, sent + answer.TTL)
            return lease

    async def renew(self, leases: Collection[Lease], until: float) -> Renewal:
        """Ask for all these leases to be renewed; those that are no more are buried."""
        sent = self._runtime.now()
        asked = list(leases)
        answers = await self._channel.ask_all(
            ways.KEEP_ALIVE, [m.LeaseKeepAliveRequest(ID=lease.id) for lease in asked], "LeaseKeepAliveResponse", until
        )
        terms = {answer.header.raft_term for answer in answers}
        alive = {answer.ID: answer.TTL for answer in answers if answer.TTL > 0}
        for lease in asked:
            if lease.id not in alive:
                self.bury(lease)
        good = [lease for lease in asked if not lease.dead]
        # More than one term among the answers: the leader has just changed, and nothing of it counts.
        return Renewal(good, sent, terms.pop() if len(terms) == 1 else -1)

    def bury(self, lease: Lease) -> None:
        """The server has no such lease any more, and so none of its claims."""
        if lease.dead:
            return
        lease.dead = True
        for seconds, known in list(self._leases.items()):
            if known is lease:
                del self._leases[seconds]
        self._died(lease)
