"""Renewals: many claims in few requests, where what one server or one line does concerns its own claims alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from ...core.claim import Claim
from ...errors import BackendUnavailable, ClientClosed
from ...runtime import Runtime
from ..resp.commands import ServerError
from ..resp.errors import NoAnswer, Refused, code_of, refusal
from ..resp.target import Address
from .channel import Channel
from .scripts import NO_CHANNEL, RENEW

CLAIMS_PER_CALL: Final = 100
CALLS_PER_TRIP: Final = 50
ONE_BY_ONE: Final = frozenset({"ERR", "TRYAGAIN", "ASK"})
"""Answers that one key of a call can bring upon the others: a line that makes no sense, a slot that is half moved (Redis 6.2
says ASK there, and TRYAGAIN only at the other end)."""

Part = Sequence[int]
"""The positions of the claims that one script call renews."""
Trouble = tuple[Address | None, Part, Any]
"""Where a call was sent, the call, and what came instead of an answer."""


class Renewals:
    """Renews the claims of one client."""

    def __init__(self, requests: Channel, channel: Callable[[Address], str], runtime: Runtime) -> None:
        self._requests = requests
        self._channel = channel
        self._now = runtime.now
        self._silent: set[Address] = set()
        """Servers that gave no answer last time: they are asked last, when the others' claims are safe."""

    async def renew(
        self, claims: Sequence[Claim], keys: Sequence[bytes], until: float
    ) -> list[int | BackendUnavailable]:
        """For each claim what RENEW says of it, or why there is no answer."""
        batch = Batch(claims, keys)
        trouble = await self._ask_all(batch, until)
        if trouble:
            now = self._now()
            # Those that were renewed shall hear of it before their own time is over.
            end = now + (until - now) / 2 if batch.answered else until
            await self._insist(batch, trouble, end)
        return batch.outcomes

    async def _ask_all(self, batch: Batch, until: float) -> list[Trouble]:
        """Ask each server once; what was not answered."""
        topology = self._requests.topology
        if batch.keys and topology.known(batch.keys[0]) is None:
            try:
                await topology.find(batch.keys[0], self._now() + (until - self._now()) / 2)
            except ClientClosed:
                raise
            except (NoAnswer, BackendUnavailable):
                pass  # whoever insists finds out why
        parts: dict[Address | None, list[Part]] = {}
        for group in topology.groups(batch.keys):
            for at in range(0, len(group), CLAIMS_PER_CALL):
                part = group[at : at + CLAIMS_PER_CALL]
                parts.setdefault(topology.known(batch.keys[part[0]]), []).append(part)
        trouble: list[Trouble] = [(None, part, None) for part in parts.pop(None, ())]
        servers = sorted((address for address in parts if address), key=self._silent.__contains__)
        for number, address in enumerate(servers):
            now = self._now()
            share = now + (until - now) / (len(servers) - number)
            trouble += await self._ask(address, batch, parts[address], share)
        return trouble

    async def _ask(self, address: Address, batch: Batch, parts: Sequence[Part], until: float) -> list[Trouble]:
        channel = self._channel(address)
        trouble: list[Trouble] = []
        for at in range(0, len(parts), CALLS_PER_TRIP):
            trip = parts[at : at + CALLS_PER_TRIP]
            calls = [batch.call(part, channel) for part in trip]
            requests = [RENEW.by_digest(keys, args) for keys, args in calls]
            try:
                replies = await self._requests.port.ask_all(address, requests, until)
            except ClientClosed:
                raise
            except (NoAnswer, BackendUnavailable) as problem:
                self._silent.add(address)
                return [*trouble, *((address, part, problem) for part in parts[at:])]
            self._silent.discard(address)
            for part, reply in zip(trip, replies, strict=True):
                if isinstance(reply, ServerError):
                    trouble.append((address, part, reply))
                else:
                    batch.note(part, reply, channel, address)
        return trouble

    async def _insist(self, batch: Batch, trouble: Sequence[Trouble], until: float) -> None:
        """Repeat what was not answered; a server that stays silent is asked for one call only."""
        given_up: dict[Address | None, BackendUnavailable] = {}
        ends: dict[Address | None, float] = {}
        servers = len({address for address, _, _ in trouble})
        for address, part, problem in trouble:
            first = address not in ends
            if first:
                now = self._now()
                ends[address] = now + (until - now) / (servers - len(ends))
            if address in given_up:
                batch.fail(part, given_up[address])
            elif isinstance(problem, BackendUnavailable):
                batch.fail(part, problem)
            elif len(part) > 1 and isinstance(problem, ServerError) and code_of(problem) in ONE_BY_ONE:
                for at in part:
                    await self._repeat(batch, (at,), ends[address])
            else:
                # The first call brings in order what can be (a script to load, a primary to look up); the others find it so.
                what = (address, problem) if first else (None, None)
                silence = await self._repeat(batch, part, ends[address], *what)
                if silence is not None:
                    given_up[address] = silence

    async def _repeat(
        self, batch: Batch, part: Part, until: float, address: Address | None = None, problem: Any = None
    ) -> BackendUnavailable | None:
        """Ask until the deadline; the error, if that was silence."""
        # It may be another server that answers in the end: none of our channels is surely right.
        keys, args = batch.call(part, NO_CHANNEL)
        try:
            if address is None:
                reply = await self._requests.run(RENEW, keys, args, until)
            else:
                reply = await self._requests.insist(RENEW, keys, args, until, None, address, problem)
        except ClientClosed:
            raise
        except BackendUnavailable as error:
            batch.fail(part, error)
            return None if isinstance(error, Refused) else error
        batch.note(part, reply, NO_CHANNEL, address or ("", 0))
        return None


class Batch:
    """Claims to renew, and what became of them."""

    __slots__ = ("answered", "claims", "keys", "outcomes")

    def __init__(self, claims: Sequence[Claim], keys: Sequence[bytes]) -> None:
        self.claims = claims
        self.keys = keys
        self.outcomes: list[int | BackendUnavailable] = [0] * len(claims)
        self.answered = False

    def call(self, part: Part, channel: str) -> tuple[list[bytes], list[Any]]:
        """The keys and arguments of RENEW."""
        args: list[Any] = [channel]
        for at in part:
            claim = self.claims[at]
            args += (claim.id, math.ceil(claim.ttl * 1000), claim.weight, claim.kind)
        return [self.keys[at] for at in part], args

    def note(self, part: Part, reply: Sequence[Any], channel: str, address: Address) -> None:
        """Take down an answer."""
        self.answered = True
        for at, fate in zip(part, reply, strict=True):
            if isinstance(fate, ServerError):
                self.outcomes[at] = refusal(fate, address)
            else:
                # Who waits and cannot be told has to look by itself, and listens from then on.
                self.outcomes[at] = 1 if fate < 0 and channel == NO_CHANNEL else fate

    def fail(self, part: Part, problem: BackendUnavailable) -> None:
        """Take down that there was none."""
        for at in part:
            self.outcomes[at] = problem
