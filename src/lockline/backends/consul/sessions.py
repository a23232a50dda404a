"""Consul's sessions of one client: one for each length of ttl in use, kept alive by what the keeper asks for.

A session is the net: what a client leaves behind that is no more, Consul removes with its session, once that has not been renewed for
its ttl, or up to twice as long. It is trusted only as far as its own ttl reaches from before a renewal that was answered.

Consul also ends a session when the node that it was made on leaves the catalog. An agent's node leaves when the agent does, and autopilot
removes the node of a server that has not answered for some seconds. So the sessions are made on a node that is no machine's: it has no
health check of Consul's own, and only such nodes are ever removed.

A leader that was deposed without knowing it may still answer a renewal that the new one never hears of. That does not matter: a new leader gives
every session its time anew, twice its ttl; no claim is trusted longer than its own ttl from its own renewal, which a quorum has written
down; and that is less than the session's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ...core.claim import Ceiling
from ...errors import BackendUnavailable
from ...runtime import Runtime
from ..keyed.carriers import Carrier, Carriers
from ..keyed.claims import KeyedClaim
from .channel import NO_NODE, ConsulChannel
from .connection import ConsulRequest
from .target import LONGEST_SESSION

NODE: Final = "lockline-claims"
"""The node in the catalog that every session is made on; the first client registers it, and it stays."""
NOWHERE: Final = "lockline.invalid"
"""The address of that node: the catalog wants one, and there is none."""
SLACK: Final = 1.5
"""A session lasts this much longer than the ttl, so that most claims that come after a renewal need none of their own."""


@dataclass(slots=True, eq=False)
class ServerSession(Carrier[str]):
    """One session at the server."""

    fences: dict[str, int] = field(default_factory=dict)
    """When each of its fences was last put, by its key; one that is not here has never been put."""


class SessionCeiling(Ceiling):
    """A claim of more than a day ends with its session, which lasts a day, if that cannot be kept alive meanwhile."""

    __slots__ = ("_own",)

    def __init__(self, own: KeyedClaim[ServerSession]) -> None:
        self._own = own

    @property
    def until(self) -> float:  # type: ignore[override]
        session = self._own.carrier
        return float("inf") if session is None or self._own.claim.ttl <= session.seconds else session.good_until


class Sessions(Carriers[ServerSession]):
    """The sessions of one client."""

    def __init__(self, channel: ConsulChannel, runtime: Runtime, died: Callable[[ServerSession], None]) -> None:
        super().__init__(runtime, died)
        self._channel = channel
        self._shortest = channel.target.session_ttl

    def seconds_for(self, ttl: float) -> float:
        """The length of the session for claims of this ttl, in steps that keep the number of sessions small."""
        wanted = max(self._shortest, ttl * SLACK)
        doublings = max(0, math.ceil(math.log2(wanted / self._shortest) - 1e-9))
        return min(LONGEST_SESSION, self._shortest * 2.0**doublings)

    async def ready(self, ttl: float, since: float, until: float, *, insist: bool = True) -> ServerSession:
        """A session that outlives a claim of this ttl, whose time counts from `since`; or one that lasts a day."""
        wanted = self.seconds_for(ttl)
        enough = since + min(ttl, wanted)
        while True:
            session = self._by_length.get(wanted)
            if session is not None and session.good_until >= enough:
                return session
            async with self._asking(until) as free:
                if not free:
                    raise BackendUnavailable("another request of this client still waits for a session")
                session = self._by_length.get(wanted)
                if session is None:
                    session = await self._create(wanted, until, insist)
                elif session.good_until < enough:
                    await self.renew([session], until, insist=insist)
                if session.good_until >= enough and not session.dead:
                    return session

    async def alone(self, ttl: float, until: float) -> ServerSession:
        """A session for one claim, which nobody keeps alive or gives back: it ends by itself, when that time is over at the earliest."""
        session = await self._make(min(LONGEST_SESSION, max(self._shortest, ttl)), until, insist=True)
        session.alone = True
        return session

    async def _create(self, seconds: float, until: float, insist: bool) -> ServerSession:
        session = self._by_length[seconds] = await self._make(seconds, until, insist)
        return session

    async def _make(self, seconds: float, until: float, insist: bool) -> ServerSession:
        # No checks: the health of the agent's node would end it sooner than its ttl. And no lock-delay: each claim has a key of
        # its own, and whoever may come next is decided by the line.
        wish = {
            "Node": NODE, "Name": f"lockline {self._runtime.who()}", "TTL": f"{seconds * 1000:.0f}ms", "Behavior": "delete",
            "LockDelay": "0s", "Checks": [], "NodeChecks": [],
        }  # fmt: skip
        sent = self._runtime.now()
        request = ConsulRequest("PUT", self._channel.path("session/create"), json.dumps(wish).encode())
        reply, _ = await self._channel.ask(request, until, insist=insist)
        if NO_NODE in reply.body:
            await self._register(until, insist)
            reply, _ = await self._channel.ask(request, until, insist=insist)
        # One whose answer was lost goes by itself.
        return ServerSession(self._channel.understand(reply, _id), seconds, sent + seconds)

    async def _register(self, until: float, insist: bool) -> None:
        """Put the sessions' node into the catalog; one that is there already stays as it is."""
        wish: dict[str, Any] = {"Node": NODE, "Address": NOWHERE, "SkipNodeUpdate": True}
        if self._channel.target.datacenter is not None:
            # An agent takes it from here alone, and not from the query as everywhere else.
            wish["Datacenter"] = self._channel.target.datacenter
        request = ConsulRequest("PUT", self._channel.path("catalog/register"), json.dumps(wish).encode())
        await self._channel.ask(request, until, insist=insist)

    async def renew(
        self, sessions: Iterable[ServerSession], until: float, *, insist: bool = True, way: ConsulChannel | None = None
    ) -> None:
        """Ask for these sessions to be renewed; those that are no more are lost."""
        for session in sessions:
            sent = self._runtime.now()
            request = ConsulRequest("PUT", self._channel.path(f"session/renew/{session.id}"))
            reply, _ = await (way or self._channel).ask(request, until, insist=insist)
            if reply.status == 404:
                self.lose(session)
            else:
                session.good_until = max(session.good_until, sent + session.seconds)

    async def destroy_all(self, until: float) -> None:
        """Give them back, with all that hangs on them."""
        for session in self.all():
            request = ConsulRequest("PUT", self._channel.path(f"session/destroy/{session.id}"))
            await self._channel.ask(request, until, insist=False)
        self._by_length.clear()


def _id(told: Any) -> str:
    if not isinstance(told["ID"], str):
        raise TypeError("no id")
    return str(told["ID"])
