"""The claims of this client: what it knows of each beyond what the store says, and how they are renewed, many in one call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple

from ...core.claim import Claim, Gone
from ...errors import BackendUnavailable
from ..doubts import Doubts as Doubts
from ..resp.commands import ServerError
from ..resp.errors import Refused, refusal
from ..resp.target import Address
from .batches import ONE_BY_ONE, Batches
from .channel import Answer, Call, Channel
from .scripts import LEAVE, NO_CHANNEL, RENEW

CLAIMS_PER_CALL: Final = 100
SOONEST_LOOK: Final = 0.02
APART: Final = 0.01
"""Seconds between the looks of neighbours in the line, so that the first can do what there is to do for all."""
FURTHEST_APART: Final = 1.0


class OwnClaim:
    """A claim that waits for its turn, or that holds and cannot be told of an eviction; of all others there is nothing to know.

    No `__init__`, because the fast path makes one per acquire.
    """

    state: Literal["waits", "holds"] = "waits"
    token: int | None = None
    """A message has said that it holds; nobody has fetched that yet."""
    behind: str = ""
    """Whom it stands directly behind, as the server once said: a later look may not find the id of one that holds."""
    look_by: float = 0.0
    """When it has to look again by itself, as long as it waits."""
    key: bytes = b""
    attended: bool = False
    """Whether it held the last time that the keeper came by: short holds shall not cost a subscription."""


class LivesOn(NamedTuple):
    """The claim lives on."""

    look_in: float
    """Seconds after which one that waits has to look again; none for one that holds, or that nobody can tell."""
    told: bool
    """Whether the server knows from this renewal where we listen."""


Fate = LivesOn | Gone | BackendUnavailable


LOGIN_S: Final = 10.0
"""How long a renewal may take that has to connect first; each answer has the server's own timeout besides."""


class Renewals:
    """Renews the claims of one client."""

    def __init__(self, channel: Channel, listens_on: Callable[[Address], str]) -> None:
        self._channel = channel
        self._topology = channel.topology
        self._batches = Batches(channel)
        self._listens_on = listens_on

    async def renew(
        self, claims: Sequence[Claim], keys: Sequence[bytes], until: float, *, exactly: bool = False
    ) -> list[Fate]:
        """What became of each claim, or why there is no answer. `exactly`: they end when their ttl is over, also if they had more."""
        if not self._channel.connections.ready:
            # A login that is cut short at the time of one renewal is begun anew by the next, and on a far server never ends.
            until = max(until, self._channel.now() + LOGIN_S)
        fates: list[Fate] = [Gone()] * len(claims)
        parts: list[Sequence[int]] = []
        for group in self._topology.groups(keys):
            parts += [group[at : at + CLAIMS_PER_CALL] for at in range(0, len(group), CLAIMS_PER_CALL)]
        while parts:
            parts = await self._renew(claims, keys, parts, fates, until, -1 if exactly else 1)
        return fates

    async def _renew(
        self,
        claims: Sequence[Claim],
        keys: Sequence[bytes],
        parts: Sequence[Sequence[int]],
        fates: list[Fate],
        until: float,
        sign: int,
    ) -> list[Sequence[int]]:
        """One call for each part; those claims that have to be renewed one by one."""
        calls, again = [], []
        for part in parts:
            args: list[Any] = []
            for at in part:
                claim = claims[at]
                args += (claim.id, sign * math.ceil(claim.ttl * 1000), claim.weight, claim.kind)
            part_keys = [keys[at] for at in part]
            address = self._topology.known(part_keys[0])
            channel = NO_CHANNEL if address is None else self._listens_on(address)
            calls.append(Call(RENEW, part_keys, (channel, *args)))
            # It may be another server that answers in the end: none of our channels is surely right.
            again.append(Call(RENEW, part_keys, (NO_CHANNEL, *args)))
        one_by_one: list[Sequence[int]] = []
        outcomes = await self._batches.run(calls, until, again=again)
        for part, call, outcome in zip(parts, calls, outcomes, strict=True):
            if isinstance(outcome, Refused) and outcome.code in ONE_BY_ONE and len(part) > 1:
                one_by_one += [(at,) for at in part]
            elif isinstance(outcome, BackendUnavailable):
                for at in part:
                    fates[at] = outcome
            else:
                told = call.args[0] != NO_CHANNEL and not outcome.insisted
                address = self._topology.known(call.keys[0]) or ("", 0)
                for at, answer in zip(part, outcome.value, strict=True):
                    fates[at] = _fate(answer, told, address)
        return one_by_one


def _fate(answer: Any, told: bool, address: Address) -> Fate:
    """What RENEW says of one claim."""
    if isinstance(answer, ServerError):
        return refusal(answer, address)
    if answer == 0:
        return Gone()
    # Who waits and cannot be told has to look by itself, and listens from then on.
    return LivesOn(-answer / 1000 if answer < 0 and told else 0.0, told)


def call_to_leave(key: bytes, claim_id: str, doubtful: bool, heir: str = "") -> Call:
    """The end of a claim; of one that may still be on its way, if that is in doubt."""
    return Call(LEAVE, (key,), (claim_id, "1" if doubtful else "0", heir))


def was_there(answer: Answer) -> bool:
    """Also if it is not there after a try that was not answered: that one may well have removed it."""
    return bool(answer.value) or answer.repeated
