"""A crowd that a store cannot take at once stands outside: in order, with nothing asked for and nothing to undo, until its own deadlines."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from lockline import AcquireTimeout, BackendUnavailable, LeaseLost, aio
from lockline.core import engine as engine_module
from lockline.core.claim import Claim
from lockline.core.entrance import entrance_to
from lockline.errors import ClientClosed

AT_ONCE = 2
NUMBERS = itertools.count()


class Narrow:
    """The client of a store that is asked for two at once, and answers when the story lets it."""

    def __init__(self, client: aio.Client) -> None:
        self.client = client
        self.asked: list[str] = []
        self.left: list[str] = []
        self.under_way = 0
        self.answers = asyncio.Event()
        self.engine: Any = client._engine
        backend: Any = self.engine.backend
        enter, leave = backend.enter, backend.leave

        async def slow_enter(claim: Claim, *, wait: bool, until: float) -> Any:
            self.asked.append(claim.name)
            self.under_way += 1
            assert self.under_way <= AT_ONCE
            try:
                async with asyncio.timeout(until - self.engine.runtime.now()):
                    await self.answers.wait()
            except TimeoutError:
                raise BackendUnavailable("silent") from None
            finally:
                self.under_way -= 1
            return await enter(claim, wait=wait, until=until)

        async def noted_leave(claim: Claim, until: float, **more: Any) -> Any:
            self.left.append(claim.name)
            return await leave(claim, until, **more)

        backend.enter, backend.leave, backend.at_once = slow_enter, noted_leave, AT_ONCE
        self.engine._entrance = entrance_to(backend, self.engine._hints)

    def crowd(self, count: int, ttl: float = 10.0) -> list[asyncio.Task[aio.Lease]]:
        """So many, each for a lock of its own."""
        return [asyncio.create_task(self.client.lock(f"n{number}", ttl=ttl).acquire()) for number in range(count)]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not condition():  # noqa: ASYNC110 - nobody says when
                await asyncio.sleep(0)

    async def until_asked(self, count: int) -> None:
        await self.until(lambda: len(self.asked) >= count)


class Busy:
    """Somebody inside, whose call goes on, or was struck down."""

    def __init__(self, *, under_way: bool) -> None:
        self.under_way = lambda: under_way


def told(story: Callable[[Narrow], Coroutine[Any, Any, None]]) -> None:
    async def with_client() -> None:
        async with aio.connect(f"memory:entrance-{next(NUMBERS)}") as client:
            narrow = Narrow(client)
            await story(narrow)
            narrow.answers.set()
            assert not narrow.engine._entrance._inside
            assert not narrow.engine._entrance._line

    asyncio.run(with_client())


def test_those_outside_have_asked_for_nothing_and_come_in_in_order_of_arrival() -> None:
    async def story(narrow: Narrow) -> None:
        crowd = narrow.crowd(20)
        await narrow.until_asked(AT_ONCE)
        assert narrow.asked == ["n0", "n1"]
        narrow.answers.set()
        for lease in await asyncio.gather(*crowd):
            await lease.release()
        assert narrow.asked == [f"n{number}" for number in range(20)]

    told(story)


def test_one_who_is_cancelled_outside_costs_the_store_nothing_and_the_others_no_place() -> None:
    async def story(narrow: Narrow) -> None:
        crowd = narrow.crowd(6)
        await narrow.until_asked(AT_ONCE)
        for task in (crowd[2], crowd[4]):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert narrow.left == []
        narrow.answers.set()
        for task in (crowd[0], crowd[1], crowd[3], crowd[5]):
            await (await task).release()
        assert narrow.asked == ["n0", "n1", "n3", "n5"]

    told(story)


def test_one_who_is_cancelled_in_the_moment_in_which_it_is_let_in_lets_in_the_next() -> None:
    async def story(narrow: Narrow) -> None:
        crowd = narrow.crowd(4)
        await narrow.until_asked(AT_ONCE)
        entrance = narrow.engine._entrance
        crowd[0].cancel()
        await narrow.until(lambda: any(live.claim.name == "n2" for live in entrance._inside.values()))
        crowd[2].cancel()
        narrow.answers.set()
        for task in (crowd[1], crowd[3]):
            await (await task).release()

    told(story)


def test_a_lease_is_worth_its_ttl_however_long_its_holder_stood_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also longer than that: nobody is told that the store is away while it answers others."""
    ttl = 600.0

    async def story(narrow: Narrow) -> None:
        entrance = narrow.engine._entrance
        crowd = narrow.crowd(4, ttl=ttl)
        await narrow.until_asked(AT_ONCE)
        entrance._inside.update(busy := {name: Busy(under_way=True) for name in ("a", "b")})
        narrow.answers.set()
        for task in crowd[:2]:
            await task
        runtime, now = narrow.engine.runtime, narrow.engine.runtime.now
        monkeypatch.setattr(runtime, "now", lambda: now() + 2 * ttl)
        entrance._answered = runtime.now()
        assert narrow.asked == ["n0", "n1"]
        for name in busy:
            del entrance._inside[name]
        entrance._let_in()
        leases = await asyncio.gather(*crowd[2:])
        assert all(lease.remaining() > ttl / 4 for lease in leases)
        for lease in leases:
            await lease.release()
        for task in crowd[:2]:
            with pytest.raises(LeaseLost):
                await (await task).release()

    told(story)


def test_whose_time_is_over_outside_hears_that_it_was_not_asked_for_and_how_many_came_first() -> None:
    async def story(narrow: Narrow) -> None:
        crowd = narrow.crowd(3)
        await narrow.until_asked(AT_ONCE)
        narrow.engine._entrance._answered = narrow.engine.runtime.now()
        with pytest.raises(AcquireTimeout, match="3 calls of this client came first") as out:
            await narrow.client.lock("late").acquire(timeout=0.01)
        assert out.value.crowd == 3
        assert "late" not in narrow.asked + narrow.left
        narrow.answers.set()
        for task in crowd:
            await (await task).release()

    told(story)


def test_a_try_outside_does_not_say_that_the_lock_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "A_TRY", 0.05)

    async def story(narrow: Narrow) -> None:
        crowd = narrow.crowd(2)
        await narrow.until_asked(AT_ONCE)
        narrow.engine._entrance._answered = narrow.engine.runtime.now()
        with pytest.raises(BackendUnavailable, match="was not asked"):
            await narrow.client.lock("late").try_acquire()
        narrow.answers.set()
        for task in crowd:
            await (await task).release()

    told(story)


def test_a_store_that_answers_nobody_is_away_for_those_outside_too_after_a_ttl() -> None:
    async def story(narrow: Narrow) -> None:
        crowd = narrow.crowd(6, ttl=0.3)
        for task in crowd:
            with pytest.raises(BackendUnavailable):
                await task

    told(story)


def test_close_ends_the_wait_outside() -> None:
    async def story(narrow: Narrow) -> None:
        crowd = narrow.crowd(4)
        await narrow.until_asked(AT_ONCE)
        closing = asyncio.create_task(narrow.client.close())
        for task in crowd[2:]:
            with pytest.raises(ClientClosed):
                await task
        narrow.answers.set()
        await closing
        await asyncio.gather(*crowd, return_exceptions=True)
        assert narrow.asked == ["n0", "n1"]

    told(story)


def test_whoever_was_struck_down_inside_keeps_nobody_out() -> None:
    async def story(narrow: Narrow) -> None:
        narrow.engine._entrance._inside.update({name: Busy(under_way=False) for name in ("a", "b")})
        narrow.answers.set()
        (one,) = narrow.crowd(1)
        await (await one).release()

    told(story)
