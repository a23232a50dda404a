"""Whoever waits for a value that another client computes gets it with the wake-up, and asks for it only where it did not come along."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import lockline
from lockline import AcquireTimeout, aio
from lockline.backends.redis.keeping import SENT_ALONG
from lockline.core.claim import Record
from tests.servers.process import wait_for

from .conftest import Town

pytestmark = pytest.mark.server

A_WHILE = 60
NAME = "größer"


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    told: Future[Any] = Future()

    def run() -> None:
        try:
            told.set_result(work())
        except BaseException as problem:
            told.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    return told


def who_waits(town: Town) -> list[tuple[str, str]]:
    """The claims that wait in the line, as the server keeps them."""
    key = town.key(NAME)
    waiting = [field for field in town.server.command("HKEYS", key) if field.startswith("~")]
    return [(field, record) for field in waiting if (record := town.server.command("HGET", key, field)) is not None]


class Waiter:
    """A client that asks for the value, and how often it has looked for it in the store."""

    def __init__(self, town: Town) -> None:
        self.looks = 0
        self.url = f"{town.server.url}?prefix={town.prefix}"
        self.flavour = town.flavour
        self.backend: Any = None

    def _attach(self, client: Any) -> None:
        self.backend = client._engine.backend
        kept = self.backend.kept

        async def counted(*args: Any) -> Record:
            self.looks += 1
            return await kept(*args)  # type: ignore[no-any-return]

        self.backend.kept = counted

    def ask(self, prepare: Callable[[Any], None] = lambda backend: None, **options: Any) -> Future[Any]:
        """The value, asked for beside us."""

        def never() -> bytes:
            raise AssertionError("somebody computes it already")

        async def awaited() -> bytes:
            return never()

        async def in_a_loop() -> Any:
            async with aio.connect(self.url) as client:
                self._attach(client)
                prepare(self.backend)
                return await client.once(NAME, awaited, A_WHILE, **options)

        def here() -> Any:
            with lockline.connect(self.url) as client:
                self._attach(client)
                prepare(self.backend)
                return client.once(NAME, never, A_WHILE, **options)

        return in_thread(here if self.flavour == "sync" else lambda: asyncio.run(in_a_loop()))


class Computer:
    """Somebody who computes the value until he is told to end."""

    def __init__(self, town: Town, value: bytes) -> None:
        self._goes_on = threading.Event()
        self._town = town
        begun = threading.Event()

        def make() -> bytes:
            begun.set()
            assert self._goes_on.wait(120)
            return value

        def work() -> Any:
            with lockline.connect(f"{town.server.url}?prefix={town.prefix}") as client:
                return client.once(NAME, make, A_WHILE)

        self.done = in_thread(work)
        assert begun.wait(60)

    def wait_for_listener(self) -> None:
        """Until somebody waits whom the server can reach."""

        wait_for(lambda: any(record.split(" ")[6] != "-" for _, record in who_waits(self._town)), 60, "one who listens")

    def end(self) -> None:
        self._goes_on.set()


@pytest.fixture
def computer(town: Town, request: pytest.FixtureRequest) -> Iterator[Computer]:
    made = Computer(town, getattr(request, "param", b"\xff 1 = \x00 "))
    yield made
    made.end()
    made.done.result(60)


def test_it_comes_with_the_wake_up_and_is_not_asked_for(town: Town, computer: Computer) -> None:
    waiter = Waiter(town)
    told = waiter.ask()
    computer.wait_for_listener()
    computer.end()
    assert told.result(60) == b"\xff 1 = \x00 "
    assert waiter.looks == 1, "before it waited, and not after"


@pytest.mark.parametrize("computer", [bytes(SENT_ALONG)], indirect=True, ids=["large"])
def test_a_large_one_is_fetched(town: Town, computer: Computer) -> None:
    waiter = Waiter(town)
    told = waiter.ask()
    computer.wait_for_listener()
    computer.end()
    assert told.result(60) == bytes(SENT_ALONG)
    assert waiter.looks == 2


def test_one_that_was_written_before_this_one_looked_is_not_taken_for_the_new_one(
    town: Town, computer: Computer
) -> None:
    """The message to another claim of this client, read late."""
    waiter = Waiter(town)

    def late(backend: Any) -> None:
        backend.told_of_kept = lambda name, what: Record(1.0, b"bold", 1, 1.0, 4e9)

    told = waiter.ask(late)
    computer.wait_for_listener()
    computer.end()
    assert told.result(60) == b"\xff 1 = \x00 "


def test_nothing_is_expected_any_more_once_nobody_waits(town: Town, computer: Computer) -> None:
    waiter = Waiter(town)
    ended = waiter.ask(timeout=0.3)
    with pytest.raises(AcquireTimeout):
        ended.result(60)
    # Its flight went on without it until the client was closed.
    wait_for(lambda: not waiter.backend._expected._records, 60, "nothing expected")


def test_who_waits_is_sent_it_once_however_many_claims_of_his_wait_and_strangers_to_it_are_not_disturbed(
    town: Town,
) -> None:
    computer = Computer(town, b"value")
    heard: list[str] = []
    waiter = Waiter(town)

    def listen(backend: Any) -> None:
        note = backend._expected.take_note

        def hear(message: str) -> None:
            heard.append(message)
            note(message)

        backend._expected.take_note = hear

    told = waiter.ask(listen)
    computer.wait_for_listener()
    # The same client's channel, and one without any.
    ((field, record),) = who_waits(town)
    town.server.command("HSET", town.key(NAME), field + "x", record, "~nobody", "1 1 1 1 1 1 - x")
    computer.end()
    assert told.result(60) == b"value"
    assert len(heard) == 1
    computer.done.result(60)
