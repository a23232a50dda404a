"""Lines as others see them, and the operator's hand in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...core.claim import Line
from ...core.rule import admitted
from ..keyed.entries import standing
from . import commands
from . import messages as m
from .channel import NOT_FOUND, OUT_OF_RANGE, Way
from .claims import EtcdClaim
from .commands import RANGE, TIME_TO_LIVE, Keys, SeenClaim, after, seen_claims
from .grpc import GrpcRefused

LEASES_ASKED = 32
"""Of how many leases the remaining time is asked for; those further back in a long line are shown with their ttl."""
BATCH = 100


async def look(channel: Way, keys: Keys, name: str, mine: Mapping[str, EtcdClaim], until: float) -> Line:
    """The whole line; `mine` are the claims of which this client knows more than the server tells."""
    answer = await channel.ask(RANGE, commands.whole_line(keys.line(name)), until)
    now = channel.now()
    line = seen_claims(answer.kvs)
    line = [claim for claim in line if claim.id not in mine or mine[claim.id].expires > now]
    line = await _with_tokens(channel, keys, line, mine, until)
    asked = list(dict.fromkeys(claim.lease for claim in line if claim.id not in mine))[:LEASES_ASKED]
    left = {lease: await _time_to_live(channel, lease, until) for lease in asked}
    count = admitted(line)
    standings = []
    for at, claim in enumerate(line):
        own = mine.get(claim.id)
        remaining = own.expires - now if own is not None else min(claim.ttl, left.get(claim.lease, claim.ttl))
        if own is not None and own.granted:
            (claim.granted,) = own.granted
        standings.append(standing(claim, token=claim.token, holds=at < count, remaining=remaining))
    return Line(name, tuple(standings))


async def _time_to_live(channel: Way, lease: int, until: float) -> float:
    answer = await channel.ask(TIME_TO_LIVE, m.LeaseTimeToLiveRequest(ID=lease), until)
    # Whole seconds, rounded down: half a second more is nearer the truth, and never nothing while it lives.
    return float(answer.TTL) + 0.5 if answer.TTL >= 0 else 0.0


async def _with_tokens(
    channel: Way, keys: Keys, line: list[SeenClaim], mine: Mapping[str, EtcdClaim], until: float
) -> list[SeenClaim]:
    """The same claims, and their tokens where they are too young to have them written down."""
    young = [claim.create for claim in line if not claim.token and claim.id not in mine]
    found = dict(zip(young, await tokens(channel, keys.fence, young, until), strict=True))
    found |= {own.create: own.token for own in mine.values()}
    return [replace(claim, token=claim.token or found.get(claim.create, 0)) for claim in line]


async def tokens(channel: Way, fence: bytes, creates: Sequence[int], until: float) -> list[int]:
    """The tokens of claims created at these revisions: the version that the fence key had then; 0 where etcd forgot."""
    found: list[int] = []
    for start in range(0, len(creates), BATCH):
        batch = creates[start : start + BATCH]
        request = m.TxnRequest(success=[commands.get(fence, revision=create, keys_only=True) for create in batch])
        try:
            answer = (await channel.transact(request, until, who="question")).answer
        except GrpcRefused as refused:
            if refused.code != OUT_OF_RANGE:
                raise
            # Compacted. One by one, so that only the oldest are without.
            found += [0] if len(batch) == 1 else [(await tokens(channel, fence, [one], until))[0] for one in batch]
            continue
        found += [reply.response_range.kvs[0].version if reply.response_range.kvs else 0 for reply in answer.responses]
    return found


async def names(channel: Way, keys: Keys, prefix: str, until: float) -> list[str]:
    """The names that have a claim, sorted."""
    beginning = keys.names(prefix)
    request = m.RangeRequest(key=beginning, range_end=after(beginning))
    answer = await channel.ask(RANGE, request, until)
    return sorted({keys.name_of(claim.key) for claim in seen_claims(answer.kvs)})


async def evict(channel: Way, keys: Keys, name: str, token: int | None, until: float) -> int:
    """Remove the holders of the line (with a token: the one who has it), and leave each a note; how many they were.

    Who holds goes on holding until it is gone, and the removal is of that very claim: what was seen may be old, but nobody who
    came later is touched.
    """
    answer = await channel.ask(RANGE, commands.whole_line(keys.line(name)), until)
    line = seen_claims(answer.kvs)
    victims = line[: admitted(line)]
    if token is not None:
        victims = [victim for victim in await _with_tokens(channel, keys, victims, {}, until) if victim.token == token]
    return sum([await _evict(channel, keys, victim, until) for victim in victims])


async def _evict(channel: Way, keys: Keys, victim: SeenClaim, until: float) -> bool:
    request = commands.evict(victim.key, victim.create, keys.note(victim.id, victim.client), victim.lease)
    try:
        answer, repeated = await channel.transact(request, until)
    except GrpcRefused as refused:
        if refused.code == NOT_FOUND:  # its lease has ended by itself
            return False
        raise
    # The first of several requests may have done it.
    return bool(answer.succeeded or repeated)
