"""What is kept beside a line, written under the token: a key on a lease of its own, put in one step with a look at the claim."""

from __future__ import annotations

import math
import secrets
from contextlib import suppress
from typing import Any, Final

from ...core.claim import Record
from ...errors import ConfigError, LocklineError
from ...runtime import Runtime
from ..kept import unpacked
from . import commands
from . import messages as m
from .channel import EtcdChannel, is_too_large
from .claims import EtcdClaim
from .clock import MemberClock
from .commands import GRANT, RANGE, REVOKE, Keys
from .grpc import GrpcRefused
from .leases import FAILED_PRECONDITION

LONGER: Final = 2
"""Seconds by which etcd keeps it longer than anybody believes it: whose time is not known exactly."""


class EtcdKeeping:
    """What one client keeps at etcd."""

    def __init__(self, channel: EtcdChannel, keys: Keys, clock: MemberClock, runtime: Runtime) -> None:
        self._channel = channel
        self._keys = keys
        self._clock = clock
        self._runtime = runtime

    async def look(self, name: str, what: str, until: float, *, holds: bool) -> Record:
        """What is kept there; whoever holds the line sees what all before it have written, whatever happened to the leader."""
        key, way = self._keys.kept(name, what), self._channel.brief
        if holds:
            request = commands.seen_by_a_quorum([commands.get(key)], self._keys.nothing)
            answer = (await way.transact(request, until)).answer
            kvs = answer.responses[0].response_range.kvs
        else:
            answer = await way.ask(RANGE, m.RangeRequest(key=key), until)
            kvs = answer.kvs
        reading = await self._clock.time(until)
        kept = unpacked(kvs[0].value) if kvs else None
        return reading.record(kept, answer.header.revision, kvs[0].mod_revision if kvs else 0)

    async def keep(self, own: EtcdClaim, what: str, value: bytes, ttl: float, until: float) -> bool:
        """Keep it, if the claim still stands; a repeat writes the same."""
        key = self._keys.kept(own.claim.name, what)
        data = (await self._clock.time(until)).stamped(own.token, ttl, value).packed()
        lease = await self._grant(ttl, until)
        try:
            answer, repeated = await self._channel.transact(commands.keep(own.key, own.create, key, data, lease), until)
        except GrpcRefused as refused:
            if not refused.repeated:
                # Nothing will ever hang on it, and it may last for a year.
                await self._revoke(lease, until)
            if is_too_large(refused):
                raise ConfigError(
                    f"etcd takes no value of {len(value)} bytes for {own.claim.name!r}: {refused.text}; keep it elsewhere, and its name here"
                ) from None
            raise
        before = answer.responses[0].response_range.kvs
        if answer.succeeded:
            # Of the first try, if there were two, it is the same lease.
            if before and before[0].lease not in (0, lease):
                await self._revoke(before[0].lease, until)
            return True
        if repeated and before and before[0].lease == lease:
            return True  # the first try did it, and then the claim went
        await self._revoke(lease, until)
        return False

    async def tell_time(self, span: float, until: float) -> None:
        """Find out what time it is there."""
        await self._clock.search(span, until)

    async def _grant(self, ttl: float, until: float) -> int:
        number = secrets.randbits(62) + 1
        try:
            await self._channel.ask(GRANT, m.LeaseGrantRequest(TTL=math.ceil(ttl) + LONGER, ID=number), until)
        except GrpcRefused as refused:
            if refused.code != FAILED_PRECONDITION:  # else an earlier try has done it: the number is nobody else's
                raise
        return number

    async def _revoke(self, lease: int, until: float) -> None:
        """Nothing hangs on it any more; and it would end by itself."""
        request: Any = m.LeaseRevokeRequest(ID=lease)
        with suppress(LocklineError):
            await self._channel.brief.ask(REVOKE, request, until)
