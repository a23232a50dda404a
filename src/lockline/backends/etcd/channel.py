"""Requests to a cluster: to one member as long as it answers, then to another; every request may be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from ...core.backend import REFUSAL
from ...errors import BackendUnavailable, ConfigError
from ...runtime import Runtime
from ..url import Endpoint
from . import messages as m
from .commands import AUTHENTICATE, TXN, Method
from .connection import EtcdLink
from .grpc import Broken, GrpcCall, GrpcRefused, NotTaken, Who, framed
from .members import LONGEST_PAUSE, PAUSE, Members, Unreachable
from .target import EtcdTarget

QUICK: Final = 0.5
"""An answer that came so soon says that this member is well: should it be slow later, another may be tried at once."""
FOREVER: Final = float("inf")
QUIET: Final = 1.0
"""After so much silence of a member that owes an answer it is asked for a sign of life, and after as much again given up."""
PING_EVERY: Final = 5.0
"""No sign of life is asked for within this of the last: etcd takes it for an attack and closes the connection."""
SLOW: Final = 3.0
"""A member that lives but has given nobody an answer for that long may be cut off from the others: ask another."""
MARGIN: Final = 0.1
"""The server's clock measures when pings arrive, not when they were sent."""


# gRPC status codes, and whether another member (or the same a moment later) may know better.
UNAVAILABLE, UNAUTHENTICATED, NOT_FOUND, OUT_OF_RANGE, EXHAUSTED = 14, 16, 5, 11, 8
TRANSIENT: Final = {1, 4, EXHAUSTED, UNAVAILABLE}


class Answered(NamedTuple):
    """What came back: one message for one request, a list for requests on one stream."""

    answer: Any
    repeated: bool
    """Whether it went out more than once: an earlier time may have been applied, or still be on its way."""


class EtcdChannel(Members):
    """The way to the cluster of one client: one connection, whatever the number of threads, tasks and claims."""

    def __init__(self, target: EtcdTarget, runtime: Runtime, cut: Callable[[], None]) -> None:
        super().__init__(target, runtime, cut)
        self.brief = Brief(self)
        """The same for calls that do not insist: where nobody can be reached they say so soon."""

    async def ask(self, method: Method, request: Any, until: float, *, insist: bool = True) -> Any:
        """One request, one answer. GrpcRefused for an answer that is an error which repeating does not mend."""
        return (await self.ask_all(method, [request], until, insist=insist)).answer[0]

    async def transact(self, request: Any, until: float, *, who: Who = "call", insist: bool = True) -> Answered:
        """One transaction. A newcomer lets those go first who have a claim."""
        (answer,), repeated = await self.ask_all(TXN, [request], until, who=who, insist=insist)
        return Answered(answer, repeated)

    async def ask_all(
        self, method: Method, requests: list[Any], until: float, *, who: Who = "call", insist: bool = True
    ) -> Answered:
        """Requests on one stream (unary methods take one), and an answer to each in a list; repeated until that moment.

        A request is a message, or its bytes.
        """
        body = b"".join(
            framed(request if type(request) is bytes else request.SerializeToString()) for request in requests
        )
        problem: Exception | None = None
        link: EtcdLink | None
        pause, went, said, repeated = PAUSE, False, False, False
        give_up = FOREVER if insist else self.now() + REFUSAL
        while True:
            sent, token, link = False, None, None
            try:
                link, token = await self._connect(until, FOREVER if went else give_up)
                call = await self._begin_call(link, method, body, token, who, until)
                sent = went = True
                await self._await_answer(link, call, until)
                if len(call.answers) == len(requests):
                    if method.by_quorum:
                        self._note_answer(link, call)
                    return Answered([method.answer.FromString(data) for data in call.answers], repeated)
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
            except GrpcRefused as refused:
                problem, said = refused, True
                if token is not None and _credentials_are_old(refused):
                    # Turned away at the door. Many may be at once: only the first finds its token still in use.
                    sent = False
                    if self.token == token:
                        self.token = None
                elif refused.code not in TRANSIENT or is_too_large(refused):
                    refused.repeated = repeated
                    raise
                else:
                    # It answers, so the connection is well. What it lacks (a leader, space) another member may have.
                    if link is not None and refused.code != EXHAUSTED:
                        await self._move(link, False, until)
                    # Who says again and again that it cannot serve now is asked less and less often.
                    pause = min(pause * 1.5, LONGEST_PAUSE)
            now = self.now()
            if now + pause >= until:
                raise self._unavailable(problem, went, said) from None
            await self._runtime.sleep(pause)
            # Not if nothing of it can have been applied: then the next try is the first.
            repeated = repeated or sent

    def _unavailable(self, problem: Exception | None, went: bool, said: bool = False) -> BackendUnavailable:
        what = "could not serve" if said else "gave no answer in time" if went else "cannot be reached"
        error = BackendUnavailable(f"etcd at {self._target.url} {what}: {problem}")
        error.unsent = not went
        error.permanent = isinstance(problem, Unreachable) and problem.final
        return error

    # -- one call ----------------------------------------------------------------------------------

    async def _begin_call(
        self, link: EtcdLink, method: Method, body: bytes, token: str | None, who: Who, until: float
    ) -> GrpcCall:
        """The call, once it is its turn on this connection."""
        call = await link.begin(method.path, body, token, who, until)
        if call is None:
            raise NotTaken(f"{link.endpoint} takes no more calls at once, and none of those under way has ended")
        return call

    async def _await_answer(self, link: EtcdLink, call: GrpcCall, until: float) -> None:
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

    async def _wait(self, link: EtcdLink, call: GrpcCall, until: float) -> None:
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
            await link.wait_for(call, min(until, look))

    def mind(self) -> None:
        """Where nobody asks for anything, find out whether the connection still works: a dead one is quiet, too."""
        link, now = self.link, self.now()
        if link is None or not link.grpc.opening.done or now < self._moving_until:
            return
        step, _ = Patience(0.0, QUIET, FOREVER).step(now, link.heard, link.pinged, now)
        if step == "wait" or link.unread():
            return
        if step == "ping":
            link.ping()
            return
        try:
            # Aside: whoever minds it has renewals to see to.
            self._runtime.spawn(lambda: self._replace(link), "lockline-etcd-line")
        except RuntimeError:
            pass  # no thread to be had now

    async def _replace(self, link: EtcdLink) -> None:
        await self._move(link, True, self.now() + SLOW)

    def _note_answer(self, link: EtcdLink, call: GrpcCall) -> None:
        """A quorum stands behind what this connection says."""
        now = self.now()
        link.answered = now
        if now - call.began < QUICK:
            self._is_well()

    async def _login(self, link: EtcdLink, until: float) -> str:
        request = m.AuthenticateRequest(name=self._target.user, password=self._target.password)
        try:
            call = await self._begin_call(link, AUTHENTICATE, framed(request.SerializeToString()), None, "call", until)
            await self._await_answer(link, call, until)
        except GrpcRefused as refused:
            if refused.code in TRANSIENT:
                await self._move(link, False, until)
                raise
            raise ConfigError(f"etcd does not let {self._target.user!r} in: {refused.text}") from None
        except Broken as broken:
            raise NotTaken(f"no login: {broken}") from None  # the request itself has not gone out yet
        return str(m.AuthenticateResponse.FromString(call.answers[0]).token)

    async def ask_member(self, endpoint: Endpoint, method: Method, request: Any, until: float) -> Any:
        """One request to one member, on a connection of its own."""
        link = await self._open(self._target, endpoint, self._runtime, until)
        try:
            await link.wait_for(link.grpc.opening, until)
            call = link.start(method.path, framed(request.SerializeToString()), self.token)
            if not await link.wait_for(call, until):
                raise Broken(f"{endpoint} did not answer in time")
            if call.failure is not None:
                raise call.failure
            return method.answer.FromString(call.answers[0])
        finally:
            link.close("done")


class Brief:
    """A channel for calls that do not insist: BackendUnavailable soon where no member can be reached."""

    def __init__(self, channel: EtcdChannel) -> None:
        self._channel = channel
        self.now = channel.now
        self.ask_member = channel.ask_member

    async def ask(self, method: Method, request: Any, until: float) -> Any:
        """One request, one answer."""
        return (await self.ask_all(method, [request], until)).answer[0]

    async def ask_all(self, method: Method, requests: list[Any], until: float) -> Answered:
        """Requests on one stream, and an answer to each."""
        return await self._channel.ask_all(method, requests, until, who="question", insist=False)

    async def transact(self, request: Any, until: float, *, who: Who = "call") -> Answered:
        """One transaction."""
        return await self._channel.transact(request, until, who=who, insist=False)


Way = EtcdChannel | Brief


def is_too_large(refused: GrpcRefused) -> bool:
    """Whether the request was: etcd says so of what is a little too large, and gRPC before that, as if a server were short of room."""
    return "too large" in refused.text or "larger than max" in refused.text


def _credentials_are_old(refused: GrpcRefused) -> bool:
    text = refused.text
    return (
        refused.code == UNAUTHENTICATED
        or "auth token" in text
        or "revision in header is old" in text
        or "auth store is old" in text  # the same, in the words of later releases
    )


Step = Literal["wait", "ping", "dead", "slow"]


class Patience(NamedTuple):
    """How long one call waits before it doubts its member; time for another member has to be left."""

    sent: float
    quiet: float
    slow: float

    @classmethod
    def until(cls, sent: float, until: float) -> Patience:
        """For a call that is sent now and needs its answer by then."""
        left = until - sent
        return cls(sent, min(QUIET, max(0.5, left / 4)), min(SLOW, max(0.5, left / 3)))

    def step(self, now: float, heard: float, pinged: float, answered: float) -> tuple[Step, float]:
        """What to do now, and when to ask again.

        By when the connection was last `heard`, when it was last `pinged`, and when it last `answered` any call: what one
        call waits for says nothing about the connection as long as others get their answers.
        """
        since = max(heard, self.sent)
        look = since + self.quiet
        if now >= look:
            if pinged > heard:
                look = pinged + self.quiet
                if now >= look:
                    return "dead", now + self.quiet
            elif now >= pinged + PING_EVERY + MARGIN:
                return "ping", now + self.quiet
            else:
                look = pinged + PING_EVERY + MARGIN
        slow = max(self.sent, answered) + self.slow
        if now >= slow:
            return "slow", now + self.quiet
        return "wait", min(look, slow)
