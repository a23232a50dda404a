"""The subscription of an asyncio client ends when it is told to, wherever it has got to."""

from __future__ import annotations

import asyncio

import pytest

from lockline.backends.redis.ears import LoopEars
from lockline.backends.redis.target import understand
from lockline.core import clock
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.server


# asyncio itself leaves a socket to the garbage when a connect is cancelled as it succeeds.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_subscription_that_is_being_made_anew_can_be_closed_at_any_moment(server: RedisServer) -> None:
    """A library on the way may swallow the cancel that ends it: then `close` would wait for ever."""

    async def story() -> None:
        target = understand(server.url, "asyncio", {})
        for turns in range(0, 600, 2):
            ears = LoopEars(target, "ll", lambda message: message, lambda claim: None, lambda: None)
            await ears.listen(server.address, clock.now() + 2)
            (task,) = ears._tasks.values()
            server.command("CLIENT", "KILL", "TYPE", "pubsub")
            for _ in range(turns):
                await asyncio.sleep(0)
            async with asyncio.timeout(2):
                await ears.close()
            assert task.done()

    asyncio.run(story())
