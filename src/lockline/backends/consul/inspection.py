"""Lines as others see them, and the operator's hand in them."""

from __future__ import annotations

from collections.abc import Callable

from ...core.claim import Line
from ...core.rule import admitted
from ..keyed.entries import standing
from . import commands
from .channel import ConsulChannel
from .claims import ConsulClaims
from .commands import ConsulKeys, ToldClaim, told_claims


async def look(claims: ConsulClaims, name: str, clock: Callable[[], float], until: float) -> Line:
    """The whole line, without those who have run out as far as this client knows."""
    mine = {own.claim.id: own for own in claims.standing()}
    line = await claims.sightings.read(name, until)
    now = clock()
    line = [
        claim
        for claim in line
        if (mine[claim.id].expires > now if claim.id in mine else not claims.sightings.overdue(claim, now))
    ]
    count = admitted(line)
    standings = []
    for at, claim in enumerate(line):
        own = mine.get(claim.id)
        ends = claims.sightings.ends(claim, now) if own is None else own.expires
        remaining = min(claim.ttl, ends - now)
        if own is not None and own.granted:
            (claim.granted,) = own.granted
        standings.append(standing(claim, token=claim.create, holds=at < count, remaining=remaining))
    return Line(name, tuple(standings))


async def names(channel: ConsulChannel, keys: ConsulKeys, prefix: str, until: float) -> list[str]:
    """The names that have a claim, sorted."""
    beginning = keys.names(prefix)
    found = await channel.transact([commands.may_read(beginning), commands.look(beginning)], until, insist=False)
    return sorted({keys.name_of(claim.key) for claim in told_claims(found.entries)})


async def evict(claims: ConsulClaims, channel: ConsulChannel, keys: ConsulKeys, name: str, token: int | None, until: float) -> int:  # fmt: skip
    """Remove the holders of the line (with a token: the one who has it), and leave each a word; how many they were.

    Who holds goes on holding until it is gone, and the removal is of that very claim: what was seen may be old, but nobody who
    came later is touched.
    """
    line = await claims.sightings.read(name, until)
    victims = [claim for claim in line[: admitted(line)] if token is None or claim.create == token]
    gone = [victim for victim in victims if await _evict(channel, keys, victim, until)]
    if gone:
        for victim in gone:
            if (own := claims.get(victim.id)) is not None:
                claims.lose(own)
        await claims.pushes.tell_new_holders(line, [claim for claim in line if claim not in gone], until)
    return len(gone)


async def _evict(channel: ConsulChannel, keys: ConsulKeys, victim: ToldClaim, until: float) -> bool:
    answer = await channel.transact(
        commands.evict(victim, keys.notes_to(victim.id, victim.client)), until, insist=False
    )
    # The first of several requests may have done it.
    return not answer.failed or answer.repeated
