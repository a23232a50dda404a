"""An exception that strikes on the way out of an `async with`: the lock is given back, although the task still has the lease in a variable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from lockline import aio
from tests.cutting import Cut, CutAt, in_a_thread_of_its_own

pytestmark = pytest.mark.filterwarnings(
    # What Python says of a call that was struck before it began, and of an exception in a finalizer.
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)

Block = Callable[[aio.Lock], AbstractAsyncContextManager[aio.Lease]]


THE_BEGINNING = 1
"""Before the first instruction of `__aexit__` nothing of ours has run: what strikes there is raised in the caller's own line, with the lease in hand."""


@pytest.mark.parametrize("block", [lambda lock: lock, lambda lock: lock.acquire()], ids=["a lock", "an acquire"])
@in_a_thread_of_its_own
def test_a_lock_is_free_wherever_its_block_was_struck_on_the_way_out(block: Block) -> None:
    async def story(nth: int) -> str:
        cut = CutAt(nth, inside="/lockline/", really=True)

        async with aio.connect("memory:") as client:
            kept: list[aio.Lease] = []
            try:
                async with block(client.lock("x", ttl=30)) as lease:
                    kept.append(lease)
                    cut.begin()
            except Cut:
                pass
            finally:
                cut.end()
            # WouldDeadlock as long as this task has it.
            async with client.lock("x").acquire(timeout=60):
                assert not kept[0].valid, cut.where
        return cut.where

    nth, where = THE_BEGINNING, "begun"
    while where:
        nth += 1
        where = asyncio.run(story(nth))
    assert nth > 30
