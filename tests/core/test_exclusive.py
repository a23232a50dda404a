"""Work that waits, one piece at a time, in threads and in tasks: with a deadline, and never shut for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest

from lockline.runtime import exclusive as exclusive_module
from lockline.runtime.blocking import BlockingRuntime, run
from lockline.runtime.exclusive import Exclusive
from lockline.runtime.looping import LoopRuntime


class Cut(BaseException):
    """As Ctrl-C, where the test says."""


def test_threads_go_in_one_after_the_other() -> None:
    runtime = BlockingRuntime()
    exclusive, inside, most = Exclusive(runtime), 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with exclusive(runtime.now() + 600) as mine:
            assert mine
            inside += 1
            most = max(most, inside)
            await runtime.sleep(0.002)
            inside -= 1

    threads = [threading.Thread(target=lambda: [run(work()) for _ in range(20)]) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert most == 1


def test_a_hundred_tasks_go_in_one_after_the_other_and_are_told_when(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever only looked now and then would look once an hour.
    monkeypatch.setattr(exclusive_module, "NET", 3600.0)

    async def scene() -> int:
        runtime = LoopRuntime()
        exclusive, inside, most = Exclusive(runtime), 0, 0

        async def work() -> None:
            nonlocal inside, most
            async with exclusive(runtime.now() + 600) as mine:
                assert mine
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.wait_for(asyncio.gather(*(work() for _ in range(100))), 120)
        return most

    assert asyncio.run(scene()) == 1


def test_whose_turn_does_not_come_by_then_is_told_so_and_takes_nothing() -> None:
    runtime = BlockingRuntime()
    exclusive = Exclusive(runtime)

    async def scene() -> list[bool]:
        async with exclusive(runtime.now() + 1) as first:
            async with exclusive(runtime.now() + 0.05) as second:
                pass
            async with exclusive(runtime.now()) as third:
                pass
        async with exclusive(runtime.now()) as fourth:
            return [first, second, third, fourth]

    assert run(scene()) == [True, False, False, True]


def test_a_task_that_is_cancelled_inside_or_before_leaves_the_way_free() -> None:
    async def scene() -> bool:
        runtime = LoopRuntime()
        exclusive = Exclusive(runtime)

        async def stay() -> None:
            async with exclusive(runtime.now() + 10):
                await asyncio.sleep(10)

        tasks = [asyncio.create_task(stay()) for _ in range(3)]
        await asyncio.sleep(0.01)
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        async with exclusive(runtime.now() + 1) as mine:
            return mine

    assert asyncio.run(scene())


def test_one_who_was_cut_before_it_could_leave_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = BlockingRuntime()
    exclusive = Exclusive(runtime)

    async def enter() -> bool:
        async with exclusive(runtime.now() + 1) as mine:
            return mine

    def cut(*_: object) -> None:
        raise Cut

    with monkeypatch.context() as patched:
        patched.setattr(exclusive, "_leave", cut)
        with pytest.raises(Cut):
            run(enter())
    assert run(enter())
