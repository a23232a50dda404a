"""Many script calls in few trips, where what one server or one line does concerns its own calls alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...errors import BackendUnavailable, ClientClosed
from ..resp.commands import ServerError
from ..resp.errors import NoAnswer, Refused, code_of, refusal
from ..resp.target import Address
from .channel import Answer, Call, Channel, Failed

CALLS_PER_TRIP: Final = 500
KEYS_PER_TRIP: Final = 5000
ONE_BY_ONE: Final = frozenset({"ERR", "TRYAGAIN", "ASK"})
"""Answers that one key of a call can bring upon the others: a line that makes no sense, a slot that is half moved (Redis 6.2
says ASK there, and TRYAGAIN only at the other end)."""

Outcome = Answer | BackendUnavailable
Trouble = dict[Address | None, list[tuple[int, Any]]]
"""By server: which calls had no answer, and what came instead."""


class Batch:
    """Calls, and what became of each."""

    __slots__ = ("again", "calls", "outcomes", "unanswered")

    def __init__(self, calls: Sequence[Call], again: Sequence[Call]) -> None:
        self.calls = calls
        self.again = again
        """The same for when another server may answer than the one that was first asked."""
        self.outcomes: list[Outcome | None] = [None] * len(calls)
        self.unanswered: set[int] = set()
        """Which may have been received by a server that did not answer."""


class Batches:
    """Runs batches of calls over one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._now = channel.now
        self._silent: set[Address] = set()
        """Servers that gave no answer last time: they are asked last, when the others have theirs."""

    async def run(
        self, calls: Sequence[Call], until: float, *, insists: bool = True, again: Sequence[Call] | None = None
    ) -> list[Outcome]:
        """For each call its answer, or why there is none.

        A call with several keys that fails for one of them is refused with a code of ONE_BY_ONE, for the caller to split.
        """
        batch = Batch(calls, list(again or calls))
        if calls and self._channel.topology.known(calls[0].keys[0]) is None:
            try:
                await self._channel.topology.find(calls[0].keys[0], self._now() + (until - self._now()) / 2)
            except ClientClosed:
                raise
            except (NoAnswer, BackendUnavailable):
                pass  # whoever insists finds out why
        trouble = await self._send(batch, calls, range(len(calls)), until)
        if trouble:
            now = self._now()
            # Those that were answered shall hear of it before their own time is over.
            end = now + (until - now) / 2 if any(batch.outcomes) else until
            for number, (address, failed) in enumerate(trouble.items()):
                now = self._now()
                share = now + (end - now) / (len(trouble) - number)
                await self._mend(batch, address, failed, share, insists=insists)
        return [outcome for outcome in batch.outcomes if outcome is not None]

    async def _send(self, batch: Batch, calls: Sequence[Call], places: Sequence[int], until: float) -> Trouble:
        """Ask each server once; what was not answered."""
        by_server: dict[Address | None, list[int]] = {}
        for at in places:
            by_server.setdefault(self._channel.topology.known(calls[at].keys[0]), []).append(at)
        trouble: Trouble = {}
        if None in by_server:
            trouble[None] = [(at, None) for at in by_server.pop(None)]
        servers = sorted((address for address in by_server if address), key=self._silent.__contains__)
        for number, address in enumerate(servers):
            now = self._now()
            share = now + (until - now) / (len(servers) - number)
            failed = await self._send_to(address, batch, calls, by_server[address], share)
            if failed:
                trouble[address] = failed
        return trouble

    async def _send_to(
        self, address: Address, batch: Batch, calls: Sequence[Call], places: Sequence[int], until: float
    ) -> list[tuple[int, Any]]:
        failed: list[tuple[int, Any]] = []
        per_trip = max(1, min(CALLS_PER_TRIP, KEYS_PER_TRIP // len(calls[places[0]].keys)))
        for start in range(0, len(places), per_trip):
            trip = places[start : start + per_trip]
            requests = [calls[at].by_digest for at in trip]
            try:
                replies = await self._channel.connections.ask_all(address, requests, until)
            except ClientClosed:
                raise
            except (NoAnswer, BackendUnavailable) as problem:
                self._silent.add(address)
                if isinstance(problem, NoAnswer) and problem.sent:
                    batch.unanswered.update(trip)
                return [*failed, *((at, problem) for at in places[start:])]
            self._silent.discard(address)
            for at, reply in zip(trip, replies, strict=True):
                if not isinstance(reply, ServerError):
                    batch.outcomes[at] = Answer(reply, at in batch.unanswered, insisted=calls is batch.again)
                elif len(calls[at].keys) > 1 and code_of(reply) in ONE_BY_ONE:
                    batch.outcomes[at] = refusal(reply, address)
                else:
                    failed.append((at, reply))
        return failed

    async def _mend(
        self,
        batch: Batch,
        address: Address | None,
        failed: Sequence[tuple[int, Any]],
        until: float,
        *,
        insists: bool,
    ) -> None:
        """Repeat what one server did not answer; if it stays silent, it is waited for once."""
        (first, problem), *others = failed
        # By itself: it brings in order what can be (a script to load, a primary to look up), and the others find it so.
        silence = await self._insist(batch, first, address, problem, until, insists=insists)
        left = [at for at, _ in others]
        if silence is None and left:
            trouble = await self._send(batch, batch.again, left, until)
            left = []
            for where, still in trouble.items():
                for at, problem in still:
                    if silence is None:
                        silence = await self._insist(batch, at, where, problem, until, insists=insists)
                    else:
                        left.append(at)
        for at in left:
            batch.outcomes[at] = silence

    async def _insist(
        self, batch: Batch, at: int, address: Address | None, problem: Any, until: float, *, insists: bool
    ) -> BackendUnavailable | None:
        """Ask for one until the deadline; the error, if that was silence."""
        if isinstance(problem, BackendUnavailable):
            batch.outcomes[at] = problem
            return problem
        failed = None if address is None else Failed(address, problem)
        try:
            answer = await self._channel.insist(batch.again[at], until, failed, insists=insists)
        except ClientClosed:
            raise
        except BackendUnavailable as error:
            batch.outcomes[at] = error
            return None if isinstance(error, Refused) else error
        batch.outcomes[at] = answer._replace(repeated=answer.repeated or at in batch.unanswered)
        return None
