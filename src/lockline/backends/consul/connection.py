"""One exchange with an agent of Consul: a request, and its answer by a moment. The sockets are the flavours' own."""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple, Protocol

import httpcore

from ..url import Endpoint
from .target import ConsulTarget

SAMPLES: Final = 2
"""So many answers tell how long an agent takes: one alone may have met a pause."""
A_MOMENT: Final = 1.0
"""Seconds for which they tell it."""


class ConsulRequest(NamedTuple):
    """What is asked of an agent."""

    method: str
    target: str
    """Path and query."""
    body: bytes = b""
    only_in_time: bool = False
    """Whether it is not sent where its answer would come too late. What removes something is sent all the same."""


class ConsulReply(NamedTuple):
    """What it answered, whatever that was."""

    status: int
    body: bytes
    as_of: int
    """The index of the change; 0 where it did not say."""
    date: str
    """What time it was at the agent, as it says it."""


class NoReply(Exception):
    """No answer: whatever was asked may have been done, or not, or may be done later."""


class Unsent(NoReply):
    """Nothing of it can have reached the agent."""


class TooLate(Unsent):
    """The agent takes longer for its answers than there is time."""


class Pace:
    """How long an agent takes for an answer at the moment.

    A request that cannot be answered in time costs a connection, and mostly another request that takes back what it did.
    """

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=SAMPLES)
        self._answered = float("-inf")

    def note(self, began: float, ended: float) -> None:
        """An answer took from here to there."""
        self._took.append(ended - began)
        self._answered = ended

    def check(self, endpoint: Endpoint, now: float, until: float) -> None:
        """TooLate if none of the latest answers took so little time as there is."""
        if now - self._answered < A_MOMENT and until - now < (least := min(tuple(self._took))):
            raise TooLate(
                f"{endpoint} takes {least:.2g} s for an answer now, and {max(0.0, until - now):.2g} s are left"
            )


class ConsulLink(Protocol):
    """A connection for one request after the other; whose `exchange` fails is of no further use."""

    endpoint: Endpoint

    async def exchange(self, request: ConsulRequest, until: float) -> ConsulReply:
        """The answer, by then; NoReply if there is none."""

    def close(self) -> None:
        """Let go of it, from any thread: an exchange under way ends."""

    def forget(self) -> None:
        """In a forked child: let go of it without a word to the agent."""


class ConsulLinks(Protocol):
    """Few lines for many callers."""

    async def exchange(self, endpoint: Endpoint, request: ConsulRequest, until: float, most: float) -> ConsulReply:
        """One exchange on whichever line is free, or will be by then; the answer itself may take so many seconds at most."""

    def apart(self, endpoint: Endpoint) -> ConsulLink:
        """A line that is nobody else's."""

    def drop_idle(self) -> None:
        """Let go of those that nobody uses; others are made when they are needed."""

    def close(self) -> None: ...
    def forget(self) -> None: ...


def origin(target: ConsulTarget, endpoint: Endpoint) -> httpcore.Origin:
    scheme = b"http" if target.tls is None else b"https"
    return httpcore.Origin(scheme, endpoint.host.encode("idna"), endpoint.port)


def prepared(target: ConsulTarget, endpoint: Endpoint, request: ConsulRequest) -> httpcore.Request:
    """The request as httpcore wants it."""
    at = origin(target, endpoint)
    host = str(endpoint).encode() if endpoint.host.isascii() else b"%s:%d" % (at.host, at.port)
    headers = [(b"Host", host), (b"Content-Length", b"%d" % len(request.body))]
    if target.token is not None:
        headers.append((b"X-Consul-Token", target.token.encode()))
    url = httpcore.URL(scheme=at.scheme, host=at.host, port=at.port, target=request.target.encode())
    return httpcore.Request(request.method.encode(), url, headers=headers, content=request.body)


def reply(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> ConsulReply:
    said = {name.lower(): value for name, value in headers}
    index = said.get(b"x-consul-index", b"0")
    date = said.get(b"date", b"").decode(errors="replace")
    return ConsulReply(status, body, int(index) if index.isdigit() else 0, date)
