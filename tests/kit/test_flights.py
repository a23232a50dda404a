"""The computations of one client: who shares one, who must not, and how one ends that was cut short."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import lockline
from lockline import WouldDeadlock, aio
from lockline.kit import once
from lockline.kit.once import ROOM, Flight, Fresh, flights_of

from ..cutting import SoftLimit
from ..servers.process import wait_for

A_WHILE = 600


def hold_up(client: Any, looks: threading.Event | asyncio.Event, wait: Callable[[], Any]) -> None:
    """Its first look at what is kept finds what there is, sets `looks`, and is held up before it can say so."""
    backend = client._engine.backend
    kept = backend.kept

    async def held_up_once(*args: Any) -> Any:
        record = await kept(*args)
        if not looks.is_set():
            looks.set()
            if inspect.isawaitable(waiting := wait()):
                await waiting
        return record

    backend.kept = held_up_once


def turn_the_clock(monkeypatch: pytest.MonkeyPatch, client: Any, seconds: float) -> None:
    """So much time has passed, for the client and for its store, of which the steps before took no part on however busy a machine."""
    now, store_time = client._engine.runtime.now, time.time
    monkeypatch.setattr(client._engine.runtime, "now", lambda: now() + seconds)
    monkeypatch.setattr(time, "time", lambda: store_time() + seconds)


def test_a_flight_for_one_who_takes_an_older_value_is_not_for_one_who_wants_it_fresher() -> None:
    client = lockline.connect("memory:fresher")
    lockline.connect("memory:fresher").once("key", lambda: "old", fresh=A_WHILE)
    looks, goes_on = threading.Event(), threading.Event()
    hold_up(client, looks, lambda: goes_on.wait(60))
    patient = threading.Thread(target=client.once, args=("key", lambda: "new", A_WHILE))
    patient.start()
    assert looks.wait(60)
    time.sleep(0.02)
    threading.Timer(0.2, goes_on.set).start()
    assert client.once("key", lambda: "new", fresh=0.01) == "new"
    goes_on.set()
    patient.join(60)


def test_a_computation_that_asks_for_its_own_value_is_told_that_it_would_wait_for_itself() -> None:
    client = lockline.connect("memory:own")
    told: list[BaseException] = []

    def make() -> Any:
        return client.once("key", make, A_WHILE)

    def ask(**options: Any) -> None:
        try:
            client.once("key", make, A_WHILE, **options)
        except WouldDeadlock as problem:
            told.append(problem)

    for options in ({}, {"timeout": 600}):
        thread = threading.Thread(target=ask, kwargs=options, daemon=True)
        thread.start()
        thread.join(60)
    assert len(told) == 2

    async def in_a_loop() -> None:
        async with aio.connect("memory:own") as client:

            async def make() -> Any:
                return await client.once("key", make, A_WHILE)

            with pytest.raises(WouldDeadlock):
                await asyncio.wait_for(client.once("key", make, A_WHILE), 60)

    asyncio.run(in_a_loop())


def test_a_computation_that_ends_by_a_cancel_of_its_own_is_not_begun_again_and_again() -> None:
    times = 0

    async def cancelled() -> None:
        nonlocal times
        times += 1
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async def value() -> str:
        return "value"

    async def in_a_loop() -> None:
        async with aio.connect("memory:cancelled") as client:
            with pytest.raises(asyncio.CancelledError):
                await client.once("key", cancelled, A_WHILE, timeout=60)
            assert times == 1
            assert await client.once("key", value, A_WHILE) == "value"

    asyncio.run(in_a_loop())

    def leaves() -> None:
        nonlocal times
        times += 1
        raise SystemExit(3)

    client = lockline.connect("memory:cancelled-too")
    for timeout in (None, 60):
        with pytest.raises(SystemExit):
            client.once("key", leaves, A_WHILE, timeout=timeout)
    assert times == 3


@pytest.mark.parametrize("what", ["once", "once_per", "pool"])
def test_one_silence_of_the_store_does_not_end_a_computation_that_was_to_begin(what: str) -> None:
    """Of hundreds that begin at once the last may find every connection in use for longer than a mere try takes."""
    client = lockline.connect("memory:silence")
    backend: Any = client._engine.backend
    enter, tries = backend.enter, 0

    async def silent_once(claim: Any, **options: Any) -> Any:
        nonlocal tries
        if claim.kind == "permit":
            return await enter(claim, **options)
        tries += 1
        if tries == 1:
            raise lockline.BackendUnavailable("every connection is in use")
        return await enter(claim, **options)

    backend.enter = silent_once
    if what == "pool":
        client.pool(what, ["item"]).acquire().release()
    elif what == "once":
        assert client.once(what, lambda: "made", fresh=A_WHILE) == "made"
    else:
        assert client.once_per(A_WHILE, name=what)(lambda: "made")().value == "made"
    assert tries == 2


def test_close_ends_the_wait_for_a_value_that_another_one_computes() -> None:
    client, computes, goes_on = lockline.connect("memory:closed"), threading.Event(), threading.Event()
    told: list[BaseException] = []

    def make() -> None:
        computes.set()
        goes_on.wait(300)

    def ask(**options: Any) -> None:
        try:
            client.once("key", make, A_WHILE, **options)
        except lockline.ClientClosed as problem:
            told.append(problem)

    callers = [threading.Thread(target=ask, kwargs=options) for options in ({}, {}, {"timeout": 600})]
    for caller in callers:
        caller.start()
        assert computes.wait(60)
    client.close()
    for caller in callers[1:]:
        caller.join(60)
    assert len(told) == 2, "only the one who computes it is still at it"
    goes_on.set()
    callers[0].join(60)
    assert len(told) == 3


def test_close_ends_the_wait_for_a_value_in_asyncio() -> None:
    async def story() -> None:
        client, goes_on = aio.connect("memory:closed-too"), asyncio.Event()
        calls = [asyncio.create_task(client.once("key", goes_on.wait, A_WHILE)) for _ in range(2)]
        await asyncio.sleep(0.01)
        await client.close()
        for outcome in await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60):
            assert isinstance(outcome, lockline.ClientClosed)
        goes_on.set()

    asyncio.run(story())


def test_whoever_comes_when_a_value_is_too_old_does_not_get_it_from_one_who_came_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody looks in time, and is held up: who joins it when a newer value may be there already must not be given the old one."""
    fresh = 600.0
    lockline.connect("memory:held-up").once("key", lambda: "old", fresh)
    client = lockline.connect("memory:held-up")
    looks, goes_on = threading.Event(), threading.Event()
    hold_up(client, looks, lambda: goes_on.wait(60))
    early: list[Any] = []
    first = threading.Thread(target=lambda: early.append(client.once("key", lambda: "new", fresh)))
    first.start()
    assert looks.wait(60)
    turn_the_clock(monkeypatch, client, fresh)
    threading.Timer(0.2, goes_on.set).start()
    assert client.once("key", lambda: "new", fresh) == "new"
    first.join(60)
    assert early == ["old"]


def test_the_same_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = 600.0

    async def make(value: str) -> str:
        return value

    async def in_a_loop() -> None:
        async with aio.connect("memory:held-up-tasks") as other, aio.connect("memory:held-up-tasks") as client:
            await other.once("key", lambda: make("old"), fresh)
            looks, goes_on = asyncio.Event(), asyncio.Event()
            hold_up(client, looks, goes_on.wait)
            first = asyncio.create_task(client.once("key", lambda: make("new"), fresh))
            await looks.wait()
            turn_the_clock(monkeypatch, client, fresh)
            asyncio.get_running_loop().call_later(0.2, goes_on.set)
            assert await client.once("key", lambda: make("new"), fresh) == "new"
            assert await first == "old"

    asyncio.run(in_a_loop())


def test_an_error_that_many_share_shows_each_its_own_way_only() -> None:
    client, computes, goes_on = lockline.connect("memory:shared-error"), threading.Event(), threading.Event()
    told: list[int] = []

    def make() -> None:
        computes.set()
        goes_on.wait(60)
        raise ValueError("not now")

    def ask() -> None:
        try:
            client.once("key", make, A_WHILE)
        except ValueError as problem:
            told.append(len(traceback.extract_tb(problem.__traceback__)))

    callers = [threading.Thread(target=ask) for _ in range(50)]
    for caller in callers:
        caller.start()
    assert computes.wait(60)
    (flight,) = client._flights._flights.values()  # type: ignore[attr-defined]
    wait_for(lambda: len(flight.landed._sleeping) == 49, 60, "all but one who wait for it")
    goes_on.set()
    for caller in callers:
        caller.join(60)
    assert len(told) == 50
    # As far as another one was given it at the very same moment.
    assert max(told) < 50


def test_one_who_gets_no_thread_for_it_leaves_nothing_that_others_would_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = lockline.connect("memory:no-thread")
    spawn = client._engine.runtime.spawn

    def refuses(work: Any, name: str, **options: Any) -> Any:
        if name == "lockline-once":
            raise RuntimeError("no thread")
        return spawn(work, name, **options)

    monkeypatch.setattr(client._engine.runtime, "spawn", refuses)
    with pytest.raises(RuntimeError, match="no thread"):
        client.once("key", lambda: "value", A_WHILE, timeout=60)
    assert not client._flights._flights  # type: ignore[attr-defined]
    assert client.once("key", lambda: "value", A_WHILE) == "value"


def test_very_many_small_values_take_no_more_room_than_a_few_large_ones() -> None:
    client = lockline.connect("memory:small")
    client.once("key", lambda: 1, A_WHILE)
    flights = client._flights  # type: ignore[attr-defined]
    for number in range(100_000):
        flights._remember(f"small/{number}", Fresh(b"j1", 0.0, 1.0))
    # With what a dictionary, a tuple and its parts take, this is what there is room for.
    assert len(flights._seen) < ROOM / 200


def test_a_computation_that_was_cut_short_before_it_began_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception can strike between any two instructions: also where it is known already, and not yet under way."""
    monkeypatch.setattr(once, "NET", 3600)
    client = lockline.connect("memory:cut-short")
    flights = flights_of(client, client._engine)

    async def never_begun() -> None: ...

    flight, flying = Flight(client._engine), never_begun()
    flight.call.append(weakref.ref(flying))
    flights._flights["key", float(A_WHILE)] = flight
    flying.close()
    del flying
    assert client.once("key", lambda: "value", A_WHILE) == "value"


def test_a_soft_limit_outside_of_the_computation_strikes_nobody_else() -> None:
    """It is an ordinary error, as those of a computation are, which all who wait for it share."""
    client = lockline.connect("memory:soft-limit")
    looks, goes_on = threading.Event(), threading.Event()
    told: list[BaseException] = []
    got: list[str] = []

    def strike() -> None:
        goes_on.wait(60)
        raise SoftLimit

    hold_up(client, looks, strike)

    def begin() -> None:
        try:
            client.once("key", lambda: "mine", A_WHILE)
        except SoftLimit as problem:
            told.append(problem)

    struck = threading.Thread(target=begin)
    struck.start()
    assert looks.wait(60)
    other = threading.Thread(target=lambda: got.append(client.once("key", lambda: "value", A_WHILE)))
    other.start()
    (flight,) = client._flights._flights.values()  # type: ignore[attr-defined]
    wait_for(lambda: flight.landed._sleeping, 60, "the other one who waits for it")
    goes_on.set()
    for thread in (struck, other):
        thread.join(60)
    assert len(told) == 1
    assert got == ["value"]


def test_a_client_that_gets_the_lock_after_another_has_kept_the_value_does_not_compute_it() -> None:
    """It has looked before, and found nothing; the other client came and went between this look and the lock."""
    with lockline.connect("memory:kept-between") as slow, lockline.connect("memory:kept-between") as quick:
        backend: Any = slow._engine.backend
        enter = backend.enter

        async def enter_after_the_other(claim: Any, **options: Any) -> Any:
            backend.enter = enter
            assert quick.once("value", lambda: "quick", fresh=600) == "quick"
            return await enter(claim, **options)

        backend.enter = enter_after_the_other
        assert slow.once("value", lambda: "slow", fresh=600) == "quick"
