"""etcd's leases of one client: one for each length of ttl in use, kept alive by what the keeper asks for.

A lease is trusted only as far as a confirmed renewal reaches. etcd renews a lease at its leader without asking the others, so a
leader that was deposed without knowing it (frozen, cut off) may say yes to a renewal that the new leader never
heard of. So a renewal counts only when something that a quorum has *written*, asked for after it, comes from the same term.

Why that is enough: the answer to a renewal carries the term that the answering member had applied before it asked the leader, so the
leader that said yes was elected in that term or later. What was written carries at least the term in which it was committed. Are both
the same, then that leader committed it after it had said yes: a quorum still followed it, so a later leader can only have been
elected after the renewal, and a new leader gives every lease its whole time again.

Why a read is not: etcd before 3.4.42, 3.5.28 and 3.6.9 may take late answers to an old question for answers to a new one, so that a leader that
was paused and deposed confirms reads by itself, in its own term (etcd's issue 20418). It can commit nothing by itself.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from ...errors import BackendUnavailable
from ...runtime import Runtime
from ..keyed.carriers import Carrier, Carriers
from . import messages as m
from .channel import EtcdChannel, Way
from .commands import GRANT, KEEP_ALIVE
from .grpc import GrpcRefused

SLACK: Final = 1.1
"""A lease lasts this much longer than the ttl, so that claims that come shortly after a renewal need none of their own."""


@dataclass(slots=True, eq=False)
class ServerLease(Carrier[int]):
    """One lease at the server."""

    renewal: LeaseRenewal | None = None
    """The latest that was answered; the next answer of a quorum makes it count, whoever asked for either."""


FAILED_PRECONDITION: Final = 9
"""What etcd says of a lease's number that is taken."""


@dataclass(slots=True, eq=False)
class LeaseRenewal:
    """Leases renewed at a moment, in a term; good when that term is confirmed."""

    leases: Collection[ServerLease]
    sent: float
    term: int | None

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


class EtcdLeases(Carriers[ServerLease]):
    """The leases of one client."""

    def __init__(self, channel: EtcdChannel, runtime: Runtime, died: Callable[[ServerLease], None]) -> None:
        super().__init__(runtime, died)
        self._channel = channel

    def reset(self) -> None:
        """As new."""
        super().reset()
        self._asked_for: dict[int, tuple[int, float]] = {}
        """Leases of which it is not known whether they were granted: their numbers, and when they were first asked for."""

    async def ready(
        self, ttl: float, since: float, until: float, way: Way | None = None
    ) -> tuple[ServerLease, LeaseRenewal]:
        """A lease that outlives a claim of this ttl, once the renewal that comes with it is confirmed.

        The claim's time counts from `since`: whatever is renewed after that is enough, however long its answer takes.
        """
        wanted, enough = lease_seconds(ttl), since + ttl
        while True:
            lease = self._by_length.get(wanted)
            if lease is not None and lease.good_until >= enough:
                return lease, LeaseRenewal((), 0.0, None)
            async with self._asking(until) as free:
                if not free:
                    raise BackendUnavailable("another request of this client still waits for a lease")
                lease = self._by_length.get(wanted)
                if lease is None:
                    lease = await self._grant(wanted, until, way or self._channel)
                if lease.good_until >= enough:
                    continue
                renewal = lease.renewal
                if renewal is None or renewal.sent + lease.seconds < enough:
                    renewal = await self.renew([lease], until, way)
                if not lease.dead:
                    return lease, renewal

    async def alone(self, ttl: float, until: float) -> ServerLease:
        """A lease for one claim, which nobody keeps alive or gives back: it ends by itself, when that time is over at the earliest."""
        sent = self._runtime.now()
        # If it is granted twice, the other one has nothing on it, and ends as well.
        answer = await self._channel.ask(GRANT, m.LeaseGrantRequest(TTL=math.ceil(ttl)), until)
        return ServerLease(answer.ID, answer.TTL, sent + answer.TTL, alone=True)

    async def _grant(self, seconds: int, until: float, way: Way) -> ServerLease:
        # The number is ours, and so a grant that came to be without our hearing of it is found again by the next who asks.
        number, sent = self._asked_for.setdefault(seconds, (secrets.randbits(62) + 1, self._runtime.now()))
        try:
            answer = await way.ask(GRANT, m.LeaseGrantRequest(TTL=seconds, ID=number), until)
            lease = ServerLease(answer.ID, answer.TTL, sent + answer.TTL)
        except GrpcRefused as refused:
            if refused.code != FAILED_PRECONDITION:
                del self._asked_for[seconds]
                raise
            # It is there. What it lasts is at least what was asked for; a renewal tells whether it still lives.
            lease = ServerLease(number, seconds, sent)
        del self._asked_for[seconds]
        self._by_length[seconds] = lease
        return lease

    async def renew(self, leases: Collection[ServerLease], until: float, way: Way | None = None) -> LeaseRenewal:
        """Ask for all these leases to be renewed; those that are no more are lost."""
        sent = self._runtime.now()
        asked = list(leases)
        requests = [m.LeaseKeepAliveRequest(ID=lease.id) for lease in asked]
        answers = (await (way or self._channel).ask_all(KEEP_ALIVE, requests, until)).answer
        terms = {answer.header.raft_term for answer in answers}
        alive = {answer.ID: answer.TTL for answer in answers if answer.TTL > 0}
        for lease in asked:
            if lease.id not in alive:
                self.lose(lease)
        good = [lease for lease in asked if not lease.dead]
        # More than one term among the answers: the leader has just changed, and nothing of it counts.
        renewal = LeaseRenewal(good, sent, terms.pop() if len(terms) == 1 else -1)
        if renewal.term != -1:
            for lease in good:
                lease.renewal = renewal
        return renewal
