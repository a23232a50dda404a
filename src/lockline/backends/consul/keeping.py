"""What is kept beside a line, written under the token: a key that is set in one step with a look at the claim.

On no session: that would end with its client, and what was done is done. So a value says itself
until when it counts, and some of those who write remove what they find to be over.
"""

from __future__ import annotations

import base64
import binascii
import logging
from typing import Any, Final

from ...core.claim import Record
from ...errors import LocklineError
from ...runtime import Runtime
from ..kept import A_SWEEP, KeptText, sweeps, to_sweep, unpacked
from ..keyed.clock import AskedClock
from . import commands
from .channel import ConsulChannel, Transacted
from .claims import ConsulClaim
from .commands import ConsulKeys, ToldClaim, told_claim
from .connection import ConsulRequest

log = logging.getLogger("lockline")

LARGEST: Final = 256 << 10
"""Bytes of a value: Consul takes half a megabyte in one transaction, and a third of that is its spelling."""
NOTHING_YET: Final = 1
"""The step of a look that found nothing: no change of Consul's has a lower index."""


class ConsulKeeping:
    """What one client keeps at Consul."""

    def __init__(self, channel: ConsulChannel, keys: ConsulKeys, runtime: Runtime) -> None:
        self._channel = channel
        self._keys = keys
        self._runtime = runtime
        self._clock = AskedClock(runtime, self._ask_time)

    async def look(self, name: str, what: str, until: float, *, holds: bool) -> Record:
        """What is kept there, as a quorum knows it."""
        entries = await self._entries([self._keys.kept(name)], until)
        reading = await self._clock.time(until)
        found = entries.get(self._keys.kept(name, what))
        # All that is kept beside this line: so the highest index is that of the last change before this look.
        step = max((entry["ModifyIndex"] for entry in entries.values()), default=NOTHING_YET)
        if found is None:
            return reading.record(None, step)
        return reading.record(_kept(found), step, found["ModifyIndex"])

    async def keep(self, own: ConsulClaim, what: str, value: bytes, ttl: float, until: float) -> bool:
        """Keep it, if the claim still stands on its session; a repeat writes the same."""
        key = self._keys.kept(own.claim.name, what)
        kept_now = (await self._clock.time(until)).stamped(own.create, ttl, value)
        data = base64.b64encode(kept_now.packed()).decode()
        stands, repeated = own.told(self._keys.client), False
        while (answer := await self._put(stands, key, data, until)).failed:
            entries = await self._entries([own.key, key], until)
            there = told_claim(entries[own.key]) if own.key in entries else None
            if there is None or there.create != own.create:
                # The first try may have done it, and then the claim went.
                kept = _kept(entries[key]) if key in entries else None
                return (repeated or answer.repeated) and kept is not None and kept.token == own.create
            # It was moved to another session meanwhile.
            stands, repeated = there, repeated or answer.repeated
        if sweeps():
            await self._sweep(min(until, self._runtime.now() + A_SWEEP))
        return True

    async def _put(self, claim: ToldClaim, key: str, value: str, until: float) -> Transacted:
        return await self._channel.transact(commands.keep(claim, key, value), until)

    async def tell_time(self, span: float, until: float) -> None:
        """Find out what time it is at the agent."""
        await self._clock.search(span, until)

    async def _ask_time(self, until: float) -> None:
        """Every answer of an agent's says it, from now on; this is one that costs nothing else."""
        self._channel.clock = self._clock
        await self._channel.ask(ConsulRequest("GET", self._channel.path("status/leader")), until, insist=False)

    # -- what is over ------------------------------------------------------------------------------

    async def _entries(self, beginnings: list[str], until: float) -> dict[str, dict[str, Any]]:
        """What begins like this, by its key, as a quorum knows it."""
        looks = [commands.look(beginning) for beginning in beginnings]
        answer = await self._channel.transact(looks, until, insist=False, consistent=True)
        return {entry["Key"]: entry for entry in answer.entries}

    async def _sweep(self, until: float) -> None:
        """Remove some of what nobody needs any more, whoever wrote it; what is written meanwhile stays."""
        try:
            request = ConsulRequest("GET", self._channel.path(f"kv/{self._keys.all_kept}", keys=""))
            reply, _ = await self._channel.ask(request, until, insist=False)
            if reply.status == 404:
                return
            there: list[str] = self._channel.understand(reply, list)
            entries = await self._entries(list(to_sweep(there)), until)
            reading = await self._clock.time(until)
            # What is nobody's value is not ours to remove.
            told = [(entry, kept) for entry in entries.values() if (kept := _kept(entry)) is not None]
            over = [entry for entry, kept in told if reading.record(kept, 0).value is None]
            steps = [commands.remove_as_seen(entry["Key"], entry["ModifyIndex"]) for entry in over]
            if steps:
                await self._channel.transact(steps, until, insist=False)
        except LocklineError as problem:
            log.debug("removing what is no longer kept failed: %s", problem)


def _kept(entry: dict[str, Any]) -> KeptText | None:
    try:
        return unpacked(base64.b64decode(entry.get("Value") or ""))
    except binascii.Error:
        return None
