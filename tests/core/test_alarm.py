"""One timer of the loop for all who sleep on it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from functools import partial

import pytest

from lockline.runtime import clock
from lockline.runtime.alarm import FEW, Alarm
from tests.cutting import Cut, CutAt, at_each_instruction, in_a_thread_of_its_own


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
            alarm.wake(sleeper, now + after, clock.now())
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
        alarm.wake(patient, clock.now() + 3600, clock.now())
        alarm.wake(other, clock.now() + 0.05, clock.now())
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
            alarm.wake(sleeper, now + 0.05, clock.now())
        awake.set_result(None)
        gone.cancel()
        await asleep
        assert not complaints

    on_a_loop(story)


def test_a_moment_that_is_over_wakes_at_once() -> None:
    async def story(alarm: Alarm) -> None:
        sleeper = alarm.loop.create_future()
        alarm.wake(sleeper, clock.now() - 5, clock.now())
        await sleeper

    on_a_loop(story)


def test_what_was_slept_is_not_kept() -> None:
    async def story(alarm: Alarm) -> None:
        last = alarm.loop.create_future()
        alarm.wake(last, clock.now() + 0.05, clock.now())
        for _ in range(10_000):
            sleeper = alarm.loop.create_future()
            alarm.wake(sleeper, clock.now() + 3600, clock.now())
            sleeper.set_result(None)
        assert len(alarm._sleepers) <= FEW + 1
        # Nor is anybody forgotten when that is cleared away; and with the last one the timer goes.
        await last
        await asyncio.sleep(0)
        assert not alarm._sleepers
        assert alarm._timer is None

    on_a_loop(story)


@pytest.mark.slow
@in_a_thread_of_its_own
def test_an_exception_at_any_instruction_costs_nobody_else_his_waking() -> None:
    """A signal handler that raises, Ctrl-C in a notebook: it may strike the loop's thread between any two instructions."""

    async def story(nth: int) -> str:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: None)
        alarm, sleepers = Alarm(loop), list[asyncio.Future[None]]()

        def sleep(after: float) -> None:
            sleeper, now = loop.create_future(), clock.now()
            try:
                alarm.wake(sleeper, now + after, now)
            except Cut:
                return  # it hears of it by that
            sleepers.append(sleeper)

        cut = CutAt(nth, inside="runtime/alarm")
        cut.begin()
        try:
            for after in (0.01, 3600, 0.005, 0.02):
                sleep(after)
            await asyncio.sleep(0.04)
        finally:
            cut.end()
        until = clock.now() + 10
        while sum(not sleeper.done() for sleeper in sleepers) > 1 and clock.now() < until:
            # Others come and go.
            sleep(0.01)
            await asyncio.sleep(0.02)
        assert sum(not sleeper.done() for sleeper in sleepers) <= 1, f"asleep after a cut at {cut.where}"
        return cut.where

    at_each_instruction(story, 7)


@in_a_thread_of_its_own
def test_an_exception_while_those_who_are_awake_are_cleared_away_lets_nobody_who_is_due_lie_behind_another() -> None:
    dice = random.Random(5)

    async def story(nth: int) -> str:
        loop = asyncio.get_running_loop()
        alarm, now = Alarm(loop), clock.now()
        for number in range(FEW + 1):
            sleeper = loop.create_future()
            if number == FEW:
                # Of a heap the first half is in no order of its own: without these the next ones are not where they belong.
                for _, _, awake in alarm._sleepers[: FEW // 3]:
                    awake.set_result(None)
                cut = CutAt(nth, inside="runtime/alarm")
                with contextlib.suppress(Cut):
                    cut(partial(alarm.wake, sleeper, now + 3000, now))
            else:
                alarm.wake(sleeper, now + dice.randrange(1000, 3000), now)
        first, *_ = alarm._sleepers
        assert first == min(alarm._sleepers), f"after a cut at {cut.where}"
        return cut.where

    at_each_instruction(story, 1, least=50)
