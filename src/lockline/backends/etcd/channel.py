"""Requests to a cluster: to one member as long as it answers, then to another; every request may be repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from ...core.backend import REFUSAL
from ...errors import BackendUnavailable, ConfigError
from ...runtime import Runtime
from ..url import Endpoint
from . import messages
from .connection import Broken, Call, NotTaken, Refused, framed
from .members import Link, Members, Unreachable
from .patience import Patience
from .target import EtcdTarget

PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 0.5
"""A server that says again and again that it cannot serve now is asked less and less often."""
QUICK: Final = 0.5
"""An answer that came so soon says that this member is well: should it be slow later, another may be tried at once."""
FOREVER: Final = float("inf")

# gRPC status codes, and whether another member (or the same a moment later) may know better.
UNAVAILABLE, UNAUTHENTICATED, NOT_FOUND, OUT_OF_RANGE, EXHAUSTED = 14, 16, 5, 11, 8
TRANSIENT: Final = {1, 4, EXHAUSTED, UNAVAILABLE}

Ask = Callable[..., Awaitable[Any]]


class Channel(Members):
    """The way to the cluster of one client: one connection, whatever the number of threads, tasks and claims."""

    def __init__(self, target: EtcdTarget, runtime: Runtime, cut: Callable[[], None]) -> None:
        super().__init__(target, runtime, cut)
        self.brief = Brief(self)
        """The same for calls that do not insist: where nobody can be reached they say so soon."""

    async def ask(
        self, method: str, request: Any, answer: str, until: float, repeated: Callable[[], None] | None = None,
        **how: Any,
    ) -> Any:  # fmt: skip
        """One request, one answer. Refused for an answer that is an error which repeating does not mend."""
        return (await self.ask_all(method, [request], answer, until, repeated, **how))[0]

    async def ask_all(
        self,
        method: str,
        requests: list[Any],
        answer: str,
        until: float,
        repeated: Callable[[], None] | None = None,
        *,
        newcomer: bool = False,
        insist: bool = True,
    ) -> list[Any]:
        """Requests on one stream (unary methods take one), and an answer to each; repeated until that moment.

        A request is a message, or its bytes. `repeated` is called before a request goes out again that may have been
        applied already. A newcomer lets those go first who have a claim.
        """
        body = b"".join(
            framed(request if type(request) is bytes else request.SerializeToString()) for request in requests
        )
        kind = messages.kind(answer)
        problem: Exception | None = None
        link: Link | None
        pause, went, said = PAUSE, False, False
        give_up = FOREVER if insist else self.now() + REFUSAL
        while True:
            sent, token, link = False, None, None
            try:
                link, token = await self._linked(until, FOREVER if went else give_up)
                call = await self._begun(link, method, body, token, newcomer, until)
                sent = went = True
                await self._answered(link, call, until)
                if len(call.answers) == len(requests):
                    if method in BY_QUORUM:
                        self._answers(link, call)
                    return [kind.FromString(data) for data in call.answers]
                raise Broken("the answer was not complete")
            except Unreachable as unreachable:
                if unreachable.refused or problem is None:
                    problem = unreachable  # the last try may only have been cut short, and knows less
                if unreachable.final or (not went and self.now() >= give_up and unreachable.refused):
                    raise self._unavailable(problem, went) from None
            except NotTaken as not_taken:
                # The server did not look at it. Only this try: an earlier one may have been applied.
                problem, sent = not_taken, False
            except Broken as broken:
                if problem is None or self.now() < until:
                    problem = broken  # otherwise it was our time that was over, and what was said before tells more
            except Refused as refused:
                problem, said = refused, True
                if token is not None and _credentials_are_old(refused):
                    # Turned away at the door. Many may be at once: only the first finds its token still in use.
                    sent = False
                    if self.token == token:
                        self.token = None
                elif refused.code not in TRANSIENT:
                    raise
                else:
                    # It answers, so the connection is well. What it lacks (a leader, space) another member may have.
                    if link is not None and refused.code != EXHAUSTED:
                        await self._move(link, False, until)
                    pause = min(pause * 1.5, LONGEST_PAUSE)
            now = self.now()
            if now + pause >= until:
                raise self._unavailable(problem, went, said) from None
            await self._runtime.sleep(pause)
            if sent and repeated is not None:
                repeated()

    def _unavailable(self, problem: Exception | None, went: bool, said: bool = False) -> BackendUnavailable:
        what = "could not serve" if said else "gave no answer in time" if went else "cannot be reached"
        error = BackendUnavailable(f"etcd at {self._target.url} {what}: {problem}")
        error.unsent = not went
        error.permanent = isinstance(problem, Unreachable) and problem.final
        return error

    # -- one call ----------------------------------------------------------------------------------

    async def _begun(
        self, link: Link, method: str, body: bytes, token: str | None, newcomer: bool, until: float
    ) -> Call:
        """The call, once it is its turn on this connection."""
        call = await link.streams.begin(lambda who: link.start(method, body, token, who=who), newcomer, until)
        if call is None:
            raise NotTaken(f"{link.endpoint} takes no more calls at once, and none of those under way has ended")
        return call

    async def _answered(self, link: Link, call: Call, until: float) -> None:
        """Wait for the answer; Broken when there is none by then, or when the call is better put to another member.

        A call that takes long is given up alone: others on this connection may be well, and so may be the connection.
        """
        try:
            await self._wait(link, call, until)
        except BaseException:
            link.cancel(call)
            raise
        finally:
            self._tidy()
        if call.failure is not None:
            if isinstance(call.failure, Broken) and link.grpc.broken is not None:
                self.leave(link, str(call.failure))
            raise call.failure

    async def _wait(self, link: Link, call: Call, until: float) -> None:
        patience = Patience.until(self.now(), until)
        while not call.done:
            now = self.now()
            if now >= until:
                raise Broken(f"{link.endpoint} did not answer within {now - patience.sent:.1f} s")
            if link.grpc.broken is not None:
                raise Broken(link.grpc.broken)
            if link is not self.link is not None and now >= patience.sent + patience.quiet:
                raise Broken(f"{link.endpoint} was slow, and another is asked now")
            step, look = patience.step(now, link.heard, link.pinged, link.answered)
            if step != "wait" and link.unread():
                # We are behind, not the member: read first.
                look = now + patience.quiet
            elif step == "ping":
                link.ping()
            elif step != "wait" and await self._move(link, step == "dead", until):
                continue
            await link.finished(call, min(until, look))

    def _answers(self, link: Link, call: Call) -> None:
        """A quorum stands behind what this connection says."""
        now = self.now()
        link.answered = now
        if now - call.began < QUICK:
            self._is_well()

    async def _login(self, link: Link, until: float) -> str:
        request = messages.AuthenticateRequest(name=self._target.user, password=self._target.password)
        try:
            call = await self._begun(link, AUTHENTICATE, framed(request.SerializeToString()), None, False, until)
            await self._answered(link, call, until)
        except Refused as refused:
            if refused.code in TRANSIENT:
                await self._move(link, False, until)
                raise
            raise ConfigError(f"etcd does not let {self._target.user!r} in: {refused.text}") from None
        except Broken as broken:
            raise NotTaken(f"no login: {broken}") from None  # the request itself has not gone out yet
        return str(messages.AuthenticateResponse.FromString(call.answers[0]).token)

    async def ask_member(self, endpoint: Endpoint, method: str, request: Any, answer: str, until: float) -> Any:
        """One request to one member, on a connection of its own."""
        link = await self._open(self._target, endpoint, until)
        try:
            await link.finished(link.grpc.opening, until)
            call = link.start(method, framed(request.SerializeToString()), self.token)
            if not await link.finished(call, until):
                raise Broken(f"{endpoint} did not answer in time")
            if call.failure is not None:
                raise call.failure
            return messages.kind(answer).FromString(call.answers[0])
        finally:
            link.close("done")


class Brief:
    """A channel for calls that do not insist."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.now = channel.now
        self.ask_member = channel.ask_member

    async def ask(
        self, method: str, request: Any, answer: str, until: float, repeated: Callable[[], None] | None = None,
        **how: Any,
    ) -> Any:  # fmt: skip
        """As the channel's, but BackendUnavailable soon where no member can be reached."""
        return await self._channel.ask(method, request, answer, until, repeated, insist=False, **how)

    async def ask_all(
        self, method: str, requests: list[Any], answer: str, until: float, repeated: Callable[[], None] | None = None,
        **how: Any,
    ) -> list[Any]:  # fmt: skip
        """As the channel's, but BackendUnavailable soon where no member can be reached."""
        return await self._channel.ask_all(method, requests, answer, until, repeated, insist=False, **how)


Way = Channel | Brief


def _credentials_are_old(refused: Refused) -> bool:
    return (
        refused.code == UNAUTHENTICATED or "auth token" in refused.text or "revision in header is old" in refused.text
    )


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
BY_QUORUM: Final = {TXN, GRANT, REVOKE}
"""Answers to these say that the member is in touch with the others; a member that is cut off may give the rest alone."""
