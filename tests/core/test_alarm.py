"""One timer of the loop for all who sleep on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial

from lockline.runtime import clock
from lockline.runtime.alarm import FEW, Alarm


def on_a_loop(story: Callable[[Alarm], Coroutine[object, object, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(30):
            await story(Alarm(asyncio.get_running_loop()))

    asyncio.run(run())


def test_each_is_woken_at_its_own_moment_whoever_came_first() -> None:
    async def story(alarm: Alarm) -> None:
        now = clock.now()
        woken: list[float] = []

        def note(at: float, _: object) -> None:
            woken.append(at)

        sleepers = []
        for after in (0.3, 0.1, 0.2):
            sleeper = alarm.loop.create_future()
            sleeper.add_done_callback(partial(note, now + after))
            alarm.wake(sleeper, now + after)
            sleepers.append(sleeper)
        for sleeper in sleepers:
            await sleeper
        await asyncio.sleep(0)
        assert clock.now() >= now + 0.3
        assert woken == sorted(woken)
        assert len(woken) == 3

    on_a_loop(story)


def test_one_with_little_time_does_not_wait_for_one_with_much() -> None:
    async def story(alarm: Alarm) -> None:
        patient, other = alarm.loop.create_future(), alarm.loop.create_future()
        alarm.wake(patient, clock.now() + 3600)
        alarm.wake(other, clock.now() + 0.05)
        await other
        assert not patient.done()

    on_a_loop(story)


def test_one_that_is_awake_or_gone_is_left_alone() -> None:
    async def story(alarm: Alarm) -> None:
        complaints: list[object] = []
        alarm.loop.set_exception_handler(lambda _, context: complaints.append(context))
        now = clock.now()
        awake, gone, asleep = (alarm.loop.create_future() for _ in range(3))
        for sleeper in (awake, gone, asleep):
            alarm.wake(sleeper, now + 0.05)
        awake.set_result(None)
        gone.cancel()
        await asleep
        assert not complaints

    on_a_loop(story)


def test_a_moment_that_is_over_wakes_at_once() -> None:
    async def story(alarm: Alarm) -> None:
        sleeper = alarm.loop.create_future()
        alarm.wake(sleeper, clock.now() - 5)
        await sleeper

    on_a_loop(story)


def test_what_was_slept_is_not_kept() -> None:
    async def story(alarm: Alarm) -> None:
        last = alarm.loop.create_future()
        alarm.wake(last, clock.now() + 0.05)
        for _ in range(10_000):
            sleeper = alarm.loop.create_future()
            alarm.wake(sleeper, clock.now() + 3600)
            sleeper.set_result(None)
        assert len(alarm._sleepers) <= FEW + 1
        # Nor is anybody forgotten when that is cleared away; and with the last one the timer goes.
        await last
        await asyncio.sleep(0)
        assert not alarm._sleepers
        assert alarm._timer is None

    on_a_loop(story)
