"""Requests of tasks on a connection that says nothing: each ends when its time is over, whatever struck the loop's thread before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lockline.backends.resp.connection_asyncio import Pipeline
from lockline.backends.resp.errors import NoAnswer
from lockline.runtime import clock
from tests.cutting import Cut, CutAt, at_each_instruction, in_a_thread_of_its_own


class Silent:
    """A connection that takes everything and says nothing."""

    address = ("127.0.0.1", 1)
    patience = 10.0
    replied: Callable[[Any], None]
    ended: Callable[[Exception], None]

    def __init__(self) -> None:
        self.broken: Exception | None = None

    def write(self, data: bytes) -> None: ...

    def close(self, why: Exception) -> None:
        if self.broken is None:
            self.broken = why
            self.ended(why)


@in_a_thread_of_its_own
def test_an_exception_at_any_instruction_lets_nobody_wait_for_ever() -> None:
    """The requests share a timer, and one who fails tells all the others: neither may be left undone."""

    async def story(nth: int) -> str:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
        pipeline, answers = Pipeline(Silent()), list[asyncio.Future[Any]]()  # type: ignore[arg-type]

        def ask(seconds: float) -> None:
            try:
                answers.append(pipeline.ask(b"anything", clock.now() + seconds))
            except (Cut, NoAnswer):
                pass  # it hears of it by that

        cut = CutAt(nth, inside="resp/connection_asyncio")
        cut.begin()
        try:
            for seconds in (0.03, 0.01, 0.02):
                ask(seconds)
            await asyncio.sleep(0.04)
        finally:
            cut.end()
        until = clock.now() + 60
        while not all(answer.done() for answer in answers) and clock.now() < until:
            # Others come and go.
            ask(0.01)
            await asyncio.sleep(0.02)
        assert all(answer.done() for answer in answers), f"somebody waits for ever after a cut at {cut.where}"
        return cut.where

    at_each_instruction(story, 101)
