"""One asks where the slots are, for all who want to know; where that takes long, one other asks, and not all of them."""

from __future__ import annotations

import asyncio

import pytest

from lockline.backends.redis import topology
from lockline.backends.redis.topology import AskingOnce
from lockline.runtime.looping import LoopRuntime

MANY = 100


def test_where_an_answer_takes_long_one_asks_again_and_not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology, "A_QUESTION", 0.5)

    async def story() -> None:
        runtime, asked, answer = LoopRuntime(), 0, asyncio.Event()
        asking = AskingOnce(runtime)

        async def learn(until: float) -> None:
            nonlocal asked
            asked += 1
            if asked == 3:
                answer.set()
            await answer.wait()

        await asyncio.gather(*(asking.once(learn, runtime.now() + 60) for _ in range(MANY)))
        # More only if this loop stood still meanwhile.
        assert asked < MANY // 2

    asyncio.run(story())
