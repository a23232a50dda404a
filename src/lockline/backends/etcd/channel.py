"""Requests to a cluster: to one member as long as it answers, then to the next; every request may be repeated."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from ...core.runtime import Runtime
from ...errors import BackendUnavailable, ClientClosed, ConfigError
from . import blocking, looping, messages
from .address import Address, Endpoint
from .gate import Gate, gate_for
from .wire import Broken, Call, Refused, Wire, framed

QUIET: Final = 1.0
"""After so much silence of a member that owes an answer it is asked for a sign of life, and after as much again left."""
SLOW: Final = 3.0
"""A member that lives but does not answer is left after that: it may be cut off from the others."""
CONNECT: Final = 1.0
"""How long a connection to one member may take before the next is tried."""
PAUSE: Final = 0.05

# gRPC status codes, and whether another member (or the same a moment later) may know better.
UNAVAILABLE, UNAUTHENTICATED, NOT_FOUND, OUT_OF_RANGE = 14, 16, 5, 11
TRANSIENT: Final = {1, 4, 8, UNAVAILABLE}


class Link(Protocol):
    """One connection, in one flavour."""

    wire: Wire
    heard: float
    lost: Callable[[], None] | None

    def start(
        self, method: str, messages: bytes, token: str | None = None, hear: Callable[[bytes], None] | None = None,
        ends: bool = True,
    ) -> Call: ...  # fmt: skip
    def more(self, call: Call, messages: bytes) -> None: ...
    def cancel(self, call: Call) -> None: ...
    def ping(self) -> None: ...
    async def finished(self, call: Call, until: float) -> bool: ...
    def receive(self, until: float) -> None: ...
    def nudge(self) -> None: ...
    def glance(self) -> None: ...
    def close(self, why: str) -> None: ...
    def forget(self) -> None: ...


class Channel:
    """The way to the cluster of one client: one connection, whatever the number of threads, tasks and claims."""

    def __init__(self, address: Address, runtime: Runtime, cut: Callable[[], None]) -> None:
        self._address = address
        self._runtime = runtime
        self._cut = cut
        """Called when a connection is given up: what was watched on it is watched no more."""
        self._open = blocking.open_link if runtime.flavour == "blocking" else looping.open_link
        # Clients spread over the members, each staying with its own as long as it answers.
        self._at = random.randrange(len(address.endpoints))
        self._closed = False
        self.token: str | None = None
        self.link: Link | None = None
        self.reset()

    def now(self) -> float:
        """The moment, on the clock that deadlines are on."""
        return self._runtime.now()

    def reset(self) -> None:
        """As new, with nothing of an earlier connection; for the start, and for a forked child."""
        link, self.link = self.link, None
        if link is not None:
            link.forget()
        self.token = None
        self._gate: Gate = gate_for(self._runtime)

    @property
    def endpoint(self) -> Endpoint:
        """The member that is asked at the moment."""
        return self._address.endpoints[self._at % len(self._address.endpoints)]

    # -- requests ----------------------------------------------------------------------------------

    async def ask(
        self, method: str, request: Any, answer: str, until: float, repeated: Callable[[], None] | None = None
    ) -> Any:
        """One request, one answer. Refused for an answer that is an error which repeating does not mend."""
        return (await self.ask_all(method, [request], answer, until, repeated))[0]

    async def ask_all(
        self, method: str, requests: list[Any], answer: str, until: float, repeated: Callable[[], None] | None = None
    ) -> list[Any]:
        """Requests on one stream (unary methods take one), and an answer to each; repeated until that moment.

        A request is a message, or its bytes. `repeated` is called before a request goes out again that may have been
        applied already.
        """
        body = b"".join(
            framed(request if type(request) is bytes else request.SerializeToString()) for request in requests
        )
        kind = messages.kind(answer)
        problem: Exception | None = None
        while True:
            sent, token = False, None
            try:
                link, token = await self._linked(until)
                sent = True
                call = await self._call(link, method, body, until, token)
                if len(call.answers) == len(requests):
                    return [kind.FromString(data) for data in call.answers]
                raise Broken("the answer was not complete")
            except Broken as broken:
                problem = broken
            except Refused as refused:
                if token is not None and _credentials_are_old(refused):
                    # Turned away at the door. Many may be at once: only the first finds its token still in use.
                    sent = False
                    if self.token == token:
                        self.token = None
                elif refused.code not in TRANSIENT:
                    raise
                else:
                    # No leader here, too slow, too busy: ask elsewhere.
                    self.leave(None, str(refused))
                problem = refused
            now = self._runtime.now()
            if now + PAUSE >= until:
                raise BackendUnavailable(f"etcd at {self._address.url} gave no answer in time: {problem}") from None
            await self._runtime.sleep(min(PAUSE, until - now))
            if sent and repeated is not None:
                repeated()

    async def _call(self, link: Link, method: str, body: bytes, until: float, token: str | None) -> Call:
        call = link.start(method, body, token)
        try:
            await self._answered(link, call, until)
        except BaseException:
            link.cancel(call)
            raise
        if call.failure is not None:
            if isinstance(call.failure, Broken) and link.wire.broken is not None:
                self.leave(link, str(call.failure))
            raise call.failure
        return call

    async def _answered(self, link: Link, call: Call, until: float) -> None:
        """Wait for the answer; Broken when the member seems dead, or is alive and too slow."""
        sent = self._runtime.now()
        # Time for another member has to be left.
        quiet = min(QUIET, max(0.25, (until - sent) / 4))
        slow = min(SLOW, max(0.5, (until - sent) / 3))
        asked = 0.0
        while not call.done:
            now = self._runtime.now()
            if now >= until:
                # The caller has no more time, which says nothing about the member.
                raise Broken(f"{self.endpoint} did not answer within {now - sent:.1f} s")
            if now >= sent + slow:
                self.leave(link, f"{self.endpoint} did not answer within {now - sent:.1f} s")
            elif asked and link.heard < asked and now >= asked + quiet:
                self.leave(link, f"{self.endpoint} gave no sign of life for {now - max(link.heard, sent):.1f} s")
            elif now >= max(link.heard, sent, asked) + quiet:
                # Asked only now, after time to read what was there: a stall of our own is not the member's fault.
                asked = now
                link.ping()
            if link.wire.broken is not None:
                raise Broken(link.wire.broken)
            await link.finished(call, min(until, sent + slow, max(link.heard, sent, asked) + quiet))

    # -- the connection ----------------------------------------------------------------------------

    async def _linked(self, until: float) -> tuple[Link, str | None]:
        """The connection there is, or another, and the token to ask with: ours may be taken away at any moment."""
        if self._closed:
            raise ClientClosed("this client is closed; connect a new one")
        link, token = self.link, self.token
        if link is not None and link.wire.broken is None and (token or self._address.user is None):
            return link, token
        async with self._gate(until) as free:
            if not free:
                raise Broken("another request of this client still tries to connect")
            link = self.link
            if link is not None and link.wire.broken is not None:
                self.leave(link, link.wire.broken)
                link = self.link
            if link is None:
                endpoint = self.endpoint
                try:
                    link = await self._open(self._address, endpoint, min(until, self._runtime.now() + CONNECT))
                except Broken:
                    self._at += 1
                    raise
                link.lost = partial(self.leave, link, "the connection has ended")
                self.token = None
                if self._closed:
                    link.close("this client is closed")
                self.link = link
            token = self.token
            if self._address.user is not None and token is None:
                token = self.token = await self._authenticate(link, until)
            return link, token

    async def _authenticate(self, link: Link, until: float) -> str:
        request = messages.AuthenticateRequest(name=self._address.user, password=self._address.password)
        try:
            call = await self._call(link, AUTHENTICATE, framed(request.SerializeToString()), until, None)
        except Refused as refused:
            if refused.code in TRANSIENT:
                raise
            raise ConfigError(f"etcd does not let {self._address.user!r} in: {refused.text}") from None
        return str(messages.AuthenticateResponse.FromString(call.answers[0]).token)

    def leave(self, link: Link | None, why: str) -> None:
        """Give this connection up (None: the one there is); the next request goes to the next member."""
        link = self.link if link is None else link
        if link is None:
            return
        if link is not self.link:
            link.close(why)
            return
        self.link = None
        self._at += 1
        link.close(why)
        self._cut()

    async def ask_member(self, endpoint: Endpoint, method: str, request: Any, answer: str, until: float) -> Any:
        """One request to one member, on a connection of its own."""
        link = await self._open(self._address, endpoint, until)
        try:
            call = link.start(method, framed(request.SerializeToString()), self.token)
            if not await link.finished(call, until):
                raise Broken(f"{endpoint} did not answer in time")
            if call.failure is not None:
                raise call.failure
            return messages.kind(answer).FromString(call.answers[0])
        finally:
            link.close("done")

    def close(self) -> None:
        """Let go of the connection."""
        self._closed = True
        if self.link is not None:
            self.leave(self.link, "this client is closed")


def _credentials_are_old(refused: Refused) -> bool:
    return refused.code == UNAUTHENTICATED or "auth token" in refused.text or "old" in refused.text


AUTHENTICATE: Final = "/etcdserverpb.Auth/Authenticate"
TXN: Final = "/etcdserverpb.KV/Txn"
RANGE: Final = "/etcdserverpb.KV/Range"
WATCH: Final = "/etcdserverpb.Watch/Watch"
GRANT: Final = "/etcdserverpb.Lease/LeaseGrant"
REVOKE: Final = "/etcdserverpb.Lease/LeaseRevoke"
KEEP_ALIVE: Final = "/etcdserverpb.Lease/LeaseKeepAlive"
TIME_TO_LIVE: Final = "/etcdserverpb.Lease/LeaseTimeToLive"
STATUS: Final = "/etcdserverpb.Maintenance/Status"
ALARM: Final = "/etcdserverpb.Maintenance/Alarm"
MEMBERS: Final = "/etcdserverpb.Cluster/MemberList"
