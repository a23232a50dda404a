"""One look at a line for all of a client who want to know in the same moment who stands in it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import lockline
import lockline.aio
from lockline.core import glances
from lockline.core.claim import Claim, Line, Standing
from lockline.core.glances import FRESH, Glances
from lockline.errors import BackendUnavailable
from lockline.runtime.looping import LoopRuntime

MANY = 300


def claim(claim_id: str, name: str = "x") -> Claim:
    return Claim(name, claim_id, "me", "lock", 1, 1, 9.0, 0.0, "")


class Store:
    """Shows lines in which these stand, the first of them holding; slowly, if told so."""

    def __init__(self, *ids: str) -> None:
        self.ids = list(ids)
        self.looks = 0
        self.takes = 0.0
        self.fails = 0

    async def look(self, name: str, until: float) -> Line:
        self.looks += 1
        ids = list(self.ids)
        await asyncio.sleep(self.takes)
        if self.fails:
            self.fails -= 1
            raise BackendUnavailable("silent")
        return Line(name, tuple(Standing(
            id=one, owner="me", kind="lock", token=1, holds=not at, weight=1, capacity=1, ttl=9.0, remaining=9.0,
            enqueued_at=0.0, granted_at=None if at else 0.0, meta=None
        ) for at, one in enumerate(ids)))  # fmt: skip


class Looks:
    """How often a client's store was asked for a whole line."""

    def __init__(self, client: Any) -> None:
        self.many = 0
        backend = client._engine.backend
        look = backend.look

        async def counted(name: str, until: float) -> Line:
            self.many += 1
            return await look(name, until)  # type: ignore[no-any-return]

        backend.look = counted


def test_tasks_whose_time_is_over_together_look_once_and_each_is_told_its_own_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(glances, "FRESH", 60.0)

    async def story() -> None:
        async with lockline.aio.connect("memory:") as other, lockline.aio.connect("memory:") as client:
            looks = Looks(client)
            held = await other.lock("x", ttl=60).acquire()

            async def wait() -> lockline.AcquireTimeout:
                try:
                    await client.lock("x", ttl=60).acquire(timeout=1.0)
                except lockline.AcquireTimeout as told:
                    return told
                raise AssertionError("it was held")

            told = await asyncio.gather(*(wait() for _ in range(MANY)))
            assert looks.many == 1
            assert sorted(each.ahead or 0 for each in told) == list(range(1, MANY + 1))
            assert {each.holders for each in told} == {told[0].holders}
            assert f"token {held.token}" in told[0].holders[0]
            await held.release()

    asyncio.run(story())


def test_threads_whose_time_is_over_together_look_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glances, "FRESH", 60.0)
    with lockline.connect("memory:") as client:
        looks = Looks(client)
        held = client.lock("x", ttl=60).acquire()
        places: list[int | None] = []

        def wait() -> None:
            try:
                client.lock("x", ttl=60).acquire(timeout=2.0)
            except lockline.AcquireTimeout as told:
                places.append(told.ahead)

        threads = [threading.Thread(target=wait) for _ in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert looks.many < 30
        assert len(places) == 60
        assert None not in places
        held.release()


def test_who_came_after_the_last_look_is_told_of_the_line_as_it_stands_now() -> None:
    with lockline.connect("memory:", owner="first") as first, lockline.connect("memory:") as client:
        held = first.lock("x", ttl=60).acquire()
        for _ in range(3):
            with pytest.raises(lockline.AcquireTimeout, match=f"token {held.token}; 1 ahead"):
                client.lock("x", ttl=60).acquire(timeout=0)
            held.release()
            held = first.lock("x", ttl=60).acquire()
        held.release()


def test_a_slow_look_speaks_for_all_who_came_while_it_was_under_way() -> None:
    async def story() -> None:
        runtime, store = LoopRuntime(), Store("a", "b", "c")
        store.takes = 3 * FRESH
        glances = Glances(runtime)
        seen = await asyncio.gather(
            *(glances.of(store, claim(one), runtime.now() + 10) for one in ("b", "c"))  # type: ignore[arg-type]
        )
        assert [glance.places[one] for glance, one in zip(seen, ("b", "c"), strict=True)] == [1, 2]
        assert store.looks == 1

    asyncio.run(story())


def test_after_a_look_that_failed_one_of_those_who_waited_for_it_looks_again_for_the_others() -> None:
    async def story() -> None:
        runtime, store = LoopRuntime(), Store("a", "b", "c", "d", "e")
        store.takes, store.fails = 0.01, 1
        glances = Glances(runtime)
        seen = await asyncio.gather(
            *(glances.of(store, claim(one), runtime.now() + 10) for one in "bcde"),  # type: ignore[arg-type]
            return_exceptions=True,
        )
        assert isinstance(seen[0], BackendUnavailable)
        assert [not isinstance(each, BaseException) and each.holding for each in seen[1:]] == [1, 1, 1]
        assert store.looks == 2

    asyncio.run(story())


def test_those_who_stand_in_no_line_any_more_look_once_as_well() -> None:
    """A store that lost its memory: where each looked again, one after the other, a thousand were late by seconds."""

    async def story() -> None:
        runtime, store = LoopRuntime(), Store("a")
        store.takes = 0.01
        glances = Glances(runtime)
        seen = await asyncio.gather(
            *(glances.of(store, claim(f"gone-{number}"), runtime.now() + 10) for number in range(50))  # type: ignore[arg-type]
        )
        assert all(glance.places == {"a": 0} for glance in seen)
        # The first one's began before the others had come.
        assert store.looks <= 2

    asyncio.run(story())


def test_a_look_that_never_ends_keeps_nobody_beyond_its_own_time() -> None:
    async def story() -> None:
        runtime, store = LoopRuntime(), Store("a", "b")
        glances = Glances(runtime)
        store.takes = 30
        hangs = asyncio.create_task(glances.of(store, claim("a"), runtime.now() + 60))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        store.takes = 0.0
        seen = await glances.of(store, claim("b"), runtime.now() + 0.05)  # type: ignore[arg-type]
        assert seen.places == {"a": 0, "b": 1}
        hangs.cancel()

    asyncio.run(story())


def test_looks_of_the_past_are_not_kept() -> None:
    async def story() -> None:
        runtime, store = LoopRuntime(), Store("a")
        glances = Glances(runtime)
        for number in range(500):
            await glances.of(store, claim("a", f"x{number}"), runtime.now() + 10)  # type: ignore[arg-type]
        await asyncio.sleep(FRESH)
        for _ in range(500):
            store.ids = ["b"]
            await glances.of(store, claim("a", "y"), runtime.now() + 10)  # type: ignore[arg-type]
        assert list(glances._last) == ["y"]

    asyncio.run(story())
