"""Whose claims have been seen to stand still: how a ttl is kept on a store that has no clock for it.

Whoever holds or waits puts its claim anew again and again, and each time its index moves. Whoever waits behind it looks now and then. A claim
whose index has not moved for its ttl, by the onlooker's own clock and counted from after it was seen, has run out: its owner trusts it
only for that long from before it was put, which was earlier. It is then removed at just that index, so that a renewal that came after all
decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ...runtime import Runtime
from . import commands
from .channel import ConsulChannel
from .commands import MOST_STEPS, ConsulKeys, Step, ToldClaim, told_claim, told_claims
from .subscription import ConsulPushes

log = logging.getLogger("lockline")

MOST: Final = 10_000
"""So many are remembered; of more, the oldest are forgotten and cost whoever asks for them another ttl."""
CLOCKS_DIFFER: Final = 1.01
"""Two clocks do not run equally fast; a holder has a margin of its own, too."""


class Sightings:
    """Lines as they are seen, and since when each claim of others in them was seen to stand as it does now."""

    def __init__(
        self, channel: ConsulChannel, keys: ConsulKeys, runtime: Runtime, pushes: ConsulPushes,
        mine: Callable[[ToldClaim], bool],
    ) -> None:  # fmt: skip
        self._channel = channel
        self._keys = keys
        self._now = runtime.now
        self._pushes = pushes
        self._mine = mine
        """Whether this client knows the claim as its own. One that it has removed may be there again: a restored snapshot."""
        self._seen: dict[str, tuple[int, float]] = {}

    async def line(self, name: str, until: float, *, insist: bool = True, consistent: bool = False) -> list[ToldClaim]:
        """The line as it is now, for one who stands in it or wants to."""
        steps = [commands.look(self._keys.line(name))]
        return await self._line(steps, until, insist=insist, consistent=consistent)

    async def read(self, name: str, until: float) -> list[ToldClaim]:
        """The line as it is now, for one who only asks; an error where that is not allowed."""
        line = self._keys.line(name)
        return await self._line([commands.may_read(line), commands.look(line)], until, insist=False)

    async def _line(
        self, steps: list[Step], until: float, *, insist: bool, consistent: bool = False
    ) -> list[ToldClaim]:
        found = await self._channel.transact(steps, until, insist=insist, consistent=consistent)
        line = told_claims(found.entries)
        self.note(line)
        return line

    async def glance(self, keys: Sequence[str], until: float) -> dict[str, ToldClaim]:
        """Those of these that are there now, by their keys."""
        found: dict[str, ToldClaim] = {}
        for start in range(0, len(keys), MOST_STEPS):
            looks = [commands.look(key) for key in keys[start : start + MOST_STEPS]]
            answer = await self._channel.transact(looks, until, insist=False)
            found |= {claim.key: claim for entry in answer.entries if (claim := told_claim(entry)) is not None}
        self.note(found.values())
        return found

    async def bury(self, line: Sequence[ToldClaim], until: float) -> bool:
        """Remove those of this line that have run out; whether there were any, so that it has to be looked at again."""
        now = self._now()
        dead = [claim for claim in line if self.overdue(claim, now)]
        for claim in dead:
            # Each by itself: one that was renewed just now keeps no other from its end.
            notes = self._keys.notes_to(claim.id, claim.client)
            answer = await self._channel.transact(commands.bury(claim, notes), until)
            if not answer.failed:
                log.info("removed a claim of %s that nobody has renewed for its ttl", claim.owner)
                rest = [other for other in line if other is not claim]
                await self._pushes.tell_new_holders(line, rest, until)
                line = rest
            self._seen.pop(claim.key, None)
        return bool(dead)

    def note(self, claims: Iterable[ToldClaim]) -> None:
        """These were seen, in an answer that is here by now."""
        now = self._now()
        for claim in claims:
            if self._mine(claim):
                continue
            known = self._seen.get(claim.key)
            # Another index, whether higher or not: a restored snapshot puts an older one back.
            if known is None or known[0] != claim.modified:
                self._seen[claim.key] = (claim.modified, now)
        if len(self._seen) > MOST:
            for key in list(self._seen)[: MOST // 2]:
                self._seen.pop(key, None)

    def ends(self, claim: ToldClaim, now: float) -> float:
        """When it will have run out, if it stays as it is."""
        known = self._seen.get(claim.key)
        since = known[1] if known is not None and known[0] == claim.modified else now
        return since + claim.ttl * CLOCKS_DIFFER

    def overdue(self, claim: ToldClaim, now: float) -> bool:
        """Whether it has run out; of our own we know more."""
        return not self._mine(claim) and self.ends(claim, now) <= now
