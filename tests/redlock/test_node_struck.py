"""An exception that strikes while a request goes to a node: the next answer is nobody else's."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from lockline.backends.redlock.channel_asyncio import AsyncioFanout
from lockline.backends.redlock.commands import NodeRequest
from lockline.backends.redlock.connection_asyncio import Awaited, NodeConnection
from tests.cutting import Cut, CutAt, in_a_thread_of_its_own


class Line:
    """A connection that counts what is sent."""

    def __init__(self) -> None:
        self.sent = 0
        self.closed = False

    def write(self, data: bytes) -> None:
        self.sent += 1

    def close(self, why: Exception) -> None:
        self.closed = True


@in_a_thread_of_its_own
def test_a_connection_ends_when_more_is_expected_than_was_sent() -> None:
    async def story(nth: int) -> str:
        channel = AsyncioFanout([], 1.0)
        one = NodeConnection(channel, 0)
        line = Line()
        one._connection, one.up = cast(Any, line), True
        one._looked = float("inf")
        cut = CutAt(nth, inside="redlock/connection_asyncio", really=True)
        cut.begin()
        try:
            one.send(Awaited(None, NodeRequest("raw", ("PING",)), 0.0), b"PING", 0.0)
        except Cut:
            pass
        finally:
            cut.end()
        channel.closed = True
        await one._worker.join(0.0)
        assert line.closed or len(one._due) == line.sent, cut.where
        return cut.where

    nth, where = 0, "begun"
    while where:
        nth += 1
        where = asyncio.run(story(nth))
    assert nth > 3
