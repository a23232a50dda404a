"""Compute once, give it to all: one flight at a time per key, in the process and over the line, written under the token."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import lockline
from lockline import AcquireTimeout, ConfigError, OnceFailed, aio
from lockline.core.backend import KeepingLess
from lockline.kit.codec import LARGEST
from lockline.kit.once import flights_of
from lockline.runtime.blocking import run

from .parties import LONG, Party, Pending
from .scene import A_MINUTE, Scene

A_WHILE = 60


class OwnError(Exception):
    """What goes wrong in a computation."""


class Work:
    """A computation that counts itself, and lasts until it is told to end."""

    def __init__(self, flavour: str, value: Any = "value", lasts: bool = False) -> None:
        self.flavour = flavour
        self.value = value
        self.error: Exception | None = None
        self.times = 0
        self.over = threading.Event()
        if not lasts:
            self.over.set()

    @property
    def make(self) -> Any:
        return self._blocking if self.flavour == "sync" else self._looping

    def _done(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def _blocking(self) -> Any:
        self.times += 1
        self.over.wait(A_MINUTE)
        return self._done()

    async def _looping(self) -> Any:
        self.times += 1
        while not self.over.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.002)
        return self._done()


def once(party: Party, work: Work, fresh: float = A_WHILE, **options: Any) -> Any:
    return begin(party, work, fresh, **options).result()


def begin(party: Party, work: Work, fresh: float = A_WHILE, **options: Any) -> Pending:
    return party.client.once.start("key", work.make, fresh, **options)  # type: ignore[no-any-return]


def count_joined(party: Party) -> Callable[[], int]:
    """How many of this client's callers have begun a flight or found one."""
    client = party.client.real
    flights = flights_of(client, client._engine)
    there = flights._flights
    joined = 0

    class Counted(dict[Any, Any]):
        def setdefault(self, key: Any, default: Any = None) -> Any:
            nonlocal joined
            found = super().setdefault(key, default)
            joined += 1
            return found

    flights._flights = Counted(there)
    return lambda: joined


@pytest.mark.lacks("keeps_values")
def test_a_store_that_keeps_nothing_says_which_can(world: Scene) -> None:
    with pytest.raises(ConfigError, match=r"redis://.*postgresql://"):
        once(world.party(), Work(world.flavour))


@pytest.mark.needs("keeps_values")
def test_one_computes_it_and_the_others_get_the_value(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    work = Work(world.flavour, {"a": [1, None, "ü"]})
    assert once(alice, work) == once(alice, work) == once(bob, work) == {"a": [1, None, "ü"]}
    assert work.times == 1
    assert world.names() == []


@pytest.mark.core
@pytest.mark.needs("keeps_values")
def test_callers_of_one_process_share_the_flight(world: Scene) -> None:
    alice = world.party()
    work = Work(world.flavour, lasts=True)
    callers = [alice, *(world.sibling(alice) for _ in range(5))]
    flights = [begin(party, work) for party in callers]
    world.wait_for(lambda: work.times == 1)
    work.over.set()
    assert [flight.result() for flight in flights] == ["value"] * 6
    assert work.times == 1


@pytest.mark.needs("keeps_values")
def test_callers_of_other_clients_wait_for_the_flight_and_get_its_value(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    carol = world.party()
    work = Work(world.flavour, lasts=True)
    flight = begin(alice, work)
    world.wait_for(lambda: work.times == 1)
    waiting = [begin(party, work) for party in (bob, carol)]
    world.wait_for_line("key", waiters=2)
    work.over.set()
    assert [one.result() for one in (flight, *waiting)] == ["value"] * 3
    assert work.times == 1
    assert world.names() == []


@pytest.mark.needs("keeps_values")
def test_a_value_that_is_no_longer_fresh_is_computed_again(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    work = Work(world.flavour)
    fresh = 0.2
    once(alice, work, fresh)
    time.sleep(1.2 * fresh)
    work.value = "newer"
    assert once(bob, work, fresh) == "newer"
    time.sleep(1.2 * fresh)
    work.value = "newest"
    assert once(alice, work, fresh) == "newest"


@pytest.mark.core
@pytest.mark.needs("keeps_values")
def test_who_wants_it_fresher_than_it_is_computes_it_again(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    work = Work(world.flavour)
    once(alice, work)
    time.sleep(0.1)
    work.value = "newer"
    assert once(bob, work, 0.05) == "newer"


@pytest.mark.core
@pytest.mark.needs("keeps_values")
def test_an_error_reaches_those_who_waited_for_that_flight_and_is_not_kept(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    work = Work(world.flavour, lasts=True)
    work.error = OwnError("not now")
    flights = [begin(party, work) for party in (alice, world.sibling(alice))]
    world.wait_for(lambda: work.times == 1)
    world.wait_for(lambda: len(alice.client.real._flights._flights) == 1)
    work.over.set()
    for flight in flights:
        with pytest.raises(OwnError):
            flight.result()
    work.error = None
    assert once(bob, work) == "value"
    assert world.names() == []


@pytest.mark.needs("keeps_values")
def test_who_waited_elsewhere_for_a_flight_that_failed_hears_of_it(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    failing, work = Work(world.flavour, lasts=True), Work(world.flavour, "mine")
    failing.error = OwnError("not now")
    flight = begin(alice, failing)
    world.wait_for(lambda: failing.times == 1)
    joined = count_joined(bob)
    waiting = begin(bob, work)
    also = begin(world.sibling(bob), work)
    other = begin(world.party(), work)
    world.wait_for_line("key", waiters=2)
    world.wait_for(lambda: joined() == 2, what="both of one client, of whom only one stands in the line")
    failing.over.set()
    with pytest.raises(OwnError):
        flight.result()
    for one in (waiting, also, other):
        with pytest.raises(OnceFailed, match=r"could not be computed by alice.*OwnError: not now") as failed:
            one.result()
        assert (failed.value.name, failed.value.owner, failed.value.text) == ("key", "alice", "not now")
    assert work.times == 0
    assert once(bob, work) == "mine", "it is not kept"
    assert world.names() == []


@pytest.mark.core
@pytest.mark.needs("keeps_values")
def test_an_error_of_before_is_nobodys(world: Scene) -> None:
    """A flight fails; then another one dies without a word: who waited for that one computes, and does not hear of the first."""
    alice, bob = world.party(), world.party()
    failing, lost, work = Work(world.flavour), Work(world.flavour, lasts=True), Work(world.flavour, "mine")
    failing.error = OwnError("not now")
    with pytest.raises(OwnError):
        once(alice, failing)
    carol = world.party()
    begin(carol, lost, ttl=LONG)
    world.wait_for(lambda: lost.times == 1)
    waiting = begin(bob, work)
    world.wait_for_line("key", waiters=1)
    world.evict("key")
    assert waiting.result() == "mine"
    lost.over.set()


@pytest.mark.needs("keeps_values")
def test_what_cannot_be_kept_is_told_elsewhere_too(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    huge, work = Work(world.flavour, "x" * (1 << 21), lasts=True), Work(world.flavour, "mine")
    flight = begin(alice, huge)
    world.wait_for(lambda: huge.times == 1)
    waiting = begin(bob, work)
    world.wait_for_line("key", waiters=1)
    huge.over.set()
    with pytest.raises(ConfigError, match="bytes"):
        flight.result()
    with pytest.raises(OnceFailed, match="ConfigError"):
        waiting.result()


@pytest.mark.needs("keeps_values")
def test_a_slow_old_computation_never_overwrites_a_newer_one_and_its_callers_get_the_newer_value(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    old, new = Work(world.flavour, "old", lasts=True), Work(world.flavour, "new")
    slow = begin(alice, old, ttl=LONG)
    world.wait_for(lambda: old.times == 1)
    world.evict("key")
    assert once(bob, new) == "new"
    old.over.set()
    assert slow.result() == "new"
    assert once(world.party(), Work(world.flavour, "never")) == "new"


@pytest.mark.needs("keeps_values")
def test_an_old_computation_cannot_write_once_a_newer_one_has_begun(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    old, new = Work(world.flavour, "old", lasts=True), Work(world.flavour, "new", lasts=True)
    slow = begin(alice, old, ttl=LONG)
    world.wait_for(lambda: old.times == 1)
    world.evict("key")
    newer = begin(bob, new)
    world.wait_for(lambda: new.times == 1)
    old.over.set()
    world.wait_for_line("key", waiters=1)
    new.over.set()
    assert (slow.result(), newer.result()) == ("new", "new")


@pytest.mark.core
@pytest.mark.needs("keeps_values")
def test_a_timeout_ends_one_callers_wait_and_not_the_computation(world: Scene) -> None:
    alice = world.party()
    work = Work(world.flavour, lasts=True)
    with pytest.raises(AcquireTimeout):
        once(alice, work, timeout=0.2)
    other = begin(world.sibling(alice), work)
    work.over.set()
    assert other.result() == "value"
    assert work.times == 1


@pytest.mark.core
@pytest.mark.needs("keeps_values")
@pytest.mark.flavour("asyncio")
def test_a_cancel_ends_one_callers_wait_and_not_the_computation(world: Scene) -> None:
    alice = world.party()
    work = Work(world.flavour, lasts=True)
    first = begin(alice, work)
    world.wait_for(lambda: work.times == 1)
    second = begin(world.sibling(alice), work)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        first.result()
    work.over.set()
    assert second.result() == "value"
    assert work.times == 1


@pytest.mark.core
@pytest.mark.needs("keeps_values")
@pytest.mark.flavour("sync")
def test_an_exception_that_strikes_the_one_who_computes_lets_another_begin(world: Scene) -> None:
    """Ctrl-C, say: no error of the computation, so those who wait do not get it."""
    alice = world.party()
    struck, work = Work(world.flavour, lasts=True), Work(world.flavour)
    struck.error = KeyboardInterrupt()  # type: ignore[assignment]
    flight = begin(alice, struck)
    world.wait_for(lambda: struck.times == 1)
    joined = count_joined(alice)
    waiting = begin(world.sibling(alice), work)
    world.wait_for(lambda: joined() == 1, what="the one who waits for the flight")
    struck.over.set()
    with pytest.raises(KeyboardInterrupt):
        flight.result()
    assert waiting.result() == "value"


@pytest.mark.needs("keeps_values")
@pytest.mark.processes
def test_a_killed_process_lets_the_next_one_compute(world: Scene) -> None:
    bob = world.party()
    process = world.process()
    ttl = world.ttl(0.5)
    process.send("compute_for_ever", key="key", ttl=ttl)
    world.wait_for_line("key", holders=1)
    work = Work(world.flavour, "bob's")
    waiting = begin(bob, work)
    world.wait_for_line("key", holders=1, waiters=1)
    process.kill()
    assert waiting.result() == "bob's"


@pytest.mark.needs("keeps_values")
def test_values_come_back_as_they_were(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    values: tuple[Any, ...] = (None, 0, "", b"", b"\x00\xff\n", [1.5], {"x": {}}, "ü" * 1000)
    for at, value in enumerate(values):
        work = Work(world.flavour, value)
        made = [party.client.once(f"key {at}", work.make, A_WHILE) for party in (alice, bob, bob)]
        assert made == [value] * 3
        assert {type(one) for one in made} == {type(value)}
        assert work.times == 1


@pytest.mark.core
@pytest.mark.needs("keeps_values")
def test_each_caller_has_a_value_of_its_own(world: Scene) -> None:
    alice = world.party()
    work = Work(world.flavour, [1])
    once(alice, work).append(2)
    assert once(alice, work) == [1]


@pytest.mark.core
@pytest.mark.needs("keeps_values")
def test_a_codec_of_ones_own(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    work = Work(world.flavour, {1, 2})
    assert once(alice, work, codec=pickle) == once(bob, work, codec=pickle) == {1, 2}
    with pytest.raises(ConfigError, match="codec"):
        once(bob, work)


@pytest.mark.core
@pytest.mark.needs("keeps_values")
@pytest.mark.parametrize("value", [5, b"bytes"], ids=["json", "bytes"])
def test_a_codec_is_not_left_out_for_a_value_that_was_written_without(world: Scene, value: object) -> None:
    alice, bob = world.party(), world.party()
    work = Work(world.flavour, value)
    assert once(alice, work) == value
    with pytest.raises(ConfigError, match="written without a codec"):
        once(bob, work, codec=pickle)


@pytest.mark.core
@pytest.mark.needs("keeps_values")
def test_what_cannot_be_kept_is_a_clear_error(world: Scene) -> None:
    alice = world.party()
    for value in (object(), {1, 2}, b"x" * (1 << 20)):
        with pytest.raises(ConfigError, match="'key'"):
            once(alice, Work(world.flavour, value))
    assert world.names() == []


@pytest.mark.needs("keeps_values")
def test_a_value_as_large_as_the_store_takes_it_comes_back(world: Scene) -> None:
    alice, bob = world.party(), world.party()
    backend = alice.client.real._engine.backend
    largest = backend.largest_kept if isinstance(backend, KeepingLess) else LARGEST
    work = Work(world.flavour, b"x" * (largest - 1))  # and one byte that says what it is
    assert once(alice, work) == once(bob, work) == work.value
    assert work.times == 1
    work.value += b"x"
    with pytest.raises(ConfigError, match=str(largest)):
        alice.client.once("other", work.make, A_WHILE)


@pytest.mark.needs("keeps_values")
def test_what_is_kept_is_gone_when_it_is_no_longer_fresh(world: Scene) -> None:
    alice = world.party()
    once(alice, Work(world.flavour), 0.1)
    time.sleep(0.12)
    backend = alice.client.real._engine.backend
    record = alice.do(
        (lambda: backend.kept("key", "once", time.monotonic() + 60))
        if world.flavour == "asyncio"
        else (lambda: run(backend.kept("key", "once", time.monotonic() + 1e6)))
    )
    assert record.value is None


def test_what_is_wrong_is_said_before_any_request() -> None:
    blocking, looping = lockline.connect("memory:once"), aio.connect("memory:once")

    async def coroutine() -> None: ...

    def generator() -> Any:
        yield

    for key, make, fresh in (
        ("", str, 5),
        ("x", 5, 5),
        ("x", coroutine, 5),
        ("x", generator, 5),
        ("x", str, 0),
        ("x", str, "soon"),
    ):
        with pytest.raises(ConfigError):
            blocking.once(key, make, fresh)  # type: ignore[arg-type]
    for codec in ("pickle", pickle.dumps, 3):
        with pytest.raises(ConfigError, match="dumps and loads"):
            blocking.once("x", lambda: pytest.fail("computed"), 5, codec=codec)  # type: ignore[arg-type]

    async def wrong() -> None:
        for key, make, fresh in (("", coroutine, 5), ("x", 5, 5), ("x", generator, 5), ("x", coroutine, -1)):
            with pytest.raises(ConfigError):
                await looping.once(key, make, fresh)  # type: ignore[arg-type]
        assert await looping.once("x", lambda: 5, 5) == 5  # type: ignore[arg-type, return-value]
        await looping.close()

    asyncio.run(wrong())
