"""Lines that exclude redis-py's own `Lock` of the same name as well, for the time in which programs move from that to Lockline.

Whoever holds the line also takes the key that redis-py's lock would take, under its own id, before it counts as a grant; so one waits
for those who have only the key, and these wait for it. Of Lockline's own waiters only the first asks for the key, and by polling:
redis-py tells nobody. The core's one loop does the waiting, so a timeout, a cancel and a close end it as they end every wait.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from ...core.backend import Finding
from ...core.claim import Claim, Gone, Grant, Line, Unanswered, Waiting
from ...core.waiting import Hints
from ...errors import BackendUnavailable
from ...runtime import Reader, Runtime
from ..resp.commands import Script
from .backend import RedisBackend
from .batches import Batches
from .channel import Answer, Call

LOOKS_EVERY: Final = 0.05
"""How often the first in the line looks whether a redis-py lock has let go: twice as often as that one's own waiters do."""

_KEEP: Final = """
if redis.pcall('GET', KEYS[1]) ~= ARGV[1] then return 0 end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
"""
# In: id, milliseconds. Out: 1 if the key is ours, from now on for at least that long. Never creates, never shortens.
KEEP: Final = Script(_KEEP)
# The same, of one that may have it or not: a repeat lengthens it too, because the claim may have been renewed since the first time.
TAKE: Final = Script("if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end" + _KEEP)
DROP: Final = Script("return redis.pcall('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0")


class Bridge:
    """One client of Redis whose locks and redis-py's exclude each other."""

    def __init__(self, inner: RedisBackend, runtime: Runtime) -> None:
        self._inner = inner
        self._now = runtime.now
        self.url = inner.url
        self.guarantees = inner.guarantees
        self.reader: Reader | None = inner.reader
        self._begin()

    def _begin(self) -> None:
        self._batches = Batches(self._inner.channel)
        self._won: dict[str, int] = {}
        """Those at the head of their line, and under which token: only redis-py's key is in their way."""
        self._asked: set[str] = set()
        """Those that may have the key."""
        self._held: set[str] = set()
        """Those that have it."""

    def forked(self) -> None:
        self._inner.forked()
        self._begin()

    def report_to(self, hints: Hints) -> None:
        self._inner.report_to(hints)

    # -- one claim ---------------------------------------------------------------------------------

    async def enter(self, claim: Claim, *, wait: bool, until: float) -> Grant | Waiting | None:
        answer = await self._inner.enter(claim, wait=wait, until=until)
        if not isinstance(answer, Grant):
            return answer if answer is None else _handed_on_by_nobody(answer)
        self._won[claim.id] = answer.token
        taken = await self._take(claim, until)
        if wait or isinstance(taken, Grant):
            return taken
        await self.leave(claim, until)
        return None

    async def place(self, claim: Claim, until: float) -> Grant | Waiting | Gone:
        if claim.id not in self._won:
            answer = await self._inner.place(claim, until)
            if isinstance(answer, Waiting):
                return _handed_on_by_nobody(answer)
            if isinstance(answer, Gone):
                return answer
            self._won[claim.id] = answer.token
        return await self._take(claim, until)

    async def _take(self, claim: Claim, until: float) -> Grant | Waiting:
        self._asked.add(claim.id)
        call = Call(TAKE, (_key(claim),), (claim.id, _millis(claim)))
        if not (await self._inner.channel.run(call, until)).value:
            return Waiting(1, self._now() + LOOKS_EVERY)
        token = self._won.pop(claim.id, None)
        if token is None:
            # Its place in the line was lost meanwhile, and a renewal has cleared it away: the next look says so. The key is to be dropped.
            self._asked.add(claim.id)
            return Waiting(1, self._now())
        self._held.add(claim.id)
        return Grant(token)

    async def leave(self, claim: Claim, until: float, *, heir: str = "") -> bool:
        # First the key: whoever waits in the line would only find it taken.
        if claim.id in self._asked:
            await self._inner.channel.run(Call(DROP, (_key(claim),), (claim.id,)), until)
        there = await self._inner.leave(claim, until)
        self._forget(claim)
        return there

    def adopt(self, claim_id: str) -> None:
        """This claim of another client may have the key."""
        self._asked.add(claim_id)

    def _forget(self, claim: Claim) -> None:
        self._won.pop(claim.id, None)
        self._asked.discard(claim.id)
        self._held.discard(claim.id)

    # -- many claims -------------------------------------------------------------------------------

    async def leave_all(self, claims: Sequence[Claim], until: float) -> Sequence[bool]:
        calls = [Call(DROP, (_key(claim),), (claim.id,)) for claim in claims if claim.id in self._asked]
        for outcome in await self._batches.run(calls, until, insists=False):
            if isinstance(outcome, BackendUnavailable):
                raise outcome
        there = await self._inner.leave_all(claims, until)
        for claim in claims:
            self._forget(claim)
        return there

    async def renew(self, claims: Sequence[Claim], until: float) -> Sequence[Gone | Unanswered | None]:
        """Both, and the key first: a claim whose key is somebody else's by now has lost what it had."""
        held = [at for at, claim in enumerate(claims) if claim.id in self._held]
        calls = [Call(KEEP, (_key(claims[at]),), (claims[at].id, _millis(claims[at]))) for at in held]
        kept = dict(zip(held, await self._batches.run(calls, until) if calls else (), strict=True))
        fates = list(await self._inner.renew(claims, until))
        for at, claim in enumerate(claims):
            key = kept.get(at)
            if isinstance(key, BackendUnavailable):
                fates[at] = fates[at] or Unanswered(key)
            elif isinstance(key, Answer) and not key.value and fates[at] is None:
                fates[at] = Gone("taken")
            if isinstance(fates[at], Gone):
                await self._clear_away(claim, until)
        return fates

    async def _clear_away(self, claim: Claim, until: float) -> None:
        """One of the two is gone: let go of the other, so that nobody waits for its ttl."""
        try:
            await self.leave(claim, until)
        except BackendUnavailable:
            self._forget(claim)

    # -- questions ---------------------------------------------------------------------------------

    async def look(self, name: str, until: float) -> Line:
        return await self._inner.look(name, until)

    async def list(self, prefix: str, until: float) -> list[str]:
        return await self._inner.list(prefix, until)

    async def evict(self, name: str, until: float, token: int | None = None) -> int:
        return await self._inner.evict(name, until, token)

    async def attend(self) -> None:
        await self._inner.attend()

    async def examine(self, until: float) -> list[Finding]:  # type: ignore[valid-type]
        return await self._inner.examine(until)

    async def close(self) -> None:
        await self._inner.close()


def _handed_on_by_nobody(answer: Waiting) -> Waiting:
    """The key does not go from one to the next inside a client."""
    return answer._replace(behind="")


def _key(claim: Claim) -> bytes:
    """What redis-py's lock of that name has for a key."""
    return claim.name.encode()


def _millis(claim: Claim) -> str:
    return str(math.ceil(claim.ttl * 1000))
