"""A background task that an exception struck, as a signal handler raises it, begins again: it renews what the client holds."""

from __future__ import annotations

import asyncio
from typing import Any

from lockline.runtime.looping import TaskWorker


def test_a_background_task_that_was_struck_begins_again_and_says_why() -> None:
    async def story() -> None:
        loop, ran, again = asyncio.get_running_loop(), 0, asyncio.Event()
        told: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: told.append(context))

        async def work() -> None:
            nonlocal ran
            ran += 1
            if ran == 1:
                raise RuntimeError("struck")
            again.set()

        worker = TaskWorker(lambda: loop.create_task(work()), lasting=True)
        async with asyncio.timeout(60):
            await again.wait()
        await worker.join(loop.time() + 60)
        assert [str(context["exception"]) for context in told] == ["struck"]

    asyncio.run(story())
