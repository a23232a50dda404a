"""A question that an agent keeps until there is news: on a connection of its own, asked again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ...runtime import Runtime
from .channel import ConsulChannel
from .connection import ConsulLink, ConsulRequest, NoReply

T = TypeVar("T")

A_QUERY: Final = 3.0
"""How long the agent keeps a query without news. Whoever waits looks now and then, too; whoever holds has nothing else by which it
hears of an eviction on a connection that died without a word. A query that finds nothing is cheap: one read of the agent's memory."""
LATER: Final = 2.0
"""An agent takes up to a sixteenth of that longer, and then the answer has to travel."""
WITHOUT_AN_INDEX: Final = 1.0
"""How long to wait before the next query where the answers carry no index, as behind a proxy that removes it: each comes at once."""
AFTER_A_FAILURE: Final = 0.25
"""How long to wait before it is asked anew."""


class News(NamedTuple, Generic[T]):
    """What there is now."""

    told: list[T]
    since: int
    """The index that was known before; what lies after it is new."""


class BlockingQuery(Generic[T]):
    """What begins like this, as it is now and then after each change."""

    def __init__(
        self, channel: ConsulChannel, runtime: Runtime, beginning: str, how: str, meaning: Callable[[Any], list[T]]
    ) -> None:
        self._channel = channel
        self._now, self._sleep = runtime.now, runtime.sleep
        self._path = f"kv/{beginning}"
        self._how = how
        """Whether whole entries ("recurse") or only their keys ("keys")."""
        self._meaning = meaning
        self._link: ConsulLink | None = None
        self._index = 0
        self._has_no_index = False
        self.ended = False

    async def ask(self) -> News[T]:
        """The next news; NoReply or BackendUnavailable if there is no answer, or it is none."""
        if self._has_no_index:
            await self._sleep(WITHOUT_AN_INDEX)
        link = self._link
        if link is None:
            self._link = link = self._channel.apart()
        # After the link is known: whoever ends this says so first, and then closes what there is.
        if self.ended:
            raise NoReply("nobody asks any more")
        path = self._channel.path(self._path, **{self._how: ""}, index=str(self._index), wait=f"{A_QUERY:.0f}s")
        try:
            reply = await link.exchange(ConsulRequest("GET", path), self._now() + A_QUERY * 17 / 16 + LATER)
            if reply.status not in (200, 404):
                raise NoReply(f"{reply.status}")
        except NoReply:
            # Other requests of this client, which would find out that the agent is silent, may be a long time off.
            self._channel.turn_from(link.endpoint)
            raise
        self._has_no_index = not reply.as_of
        # It goes back when Consul forgets what was deleted long ago, or comes back from a backup.
        since, self._index = self._index if reply.as_of >= self._index else 0, reply.as_of
        return News(self._channel.understand(reply, self._meaning) if reply.status == 200 else [], since)

    def drop(self) -> None:
        """Let go of the connection: an exchange under way ends."""
        # Whoever answers next may have come back from a backup, or with nothing: asked for what comes after an index that lies far
        # ahead of its own, it would be silent. So it is asked for all there is.
        self._index = 0
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def end(self) -> None:
        """Nobody asks any more."""
        self.ended = True
        self.drop()

    def forked(self) -> None:
        """In a child: the parent asks on."""
        if self._link is not None:
            self._link.forget()
