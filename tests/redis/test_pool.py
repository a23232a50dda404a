"""The connections that blocking threads share: handed over in order of arrival, and never lost, wherever a thread is cut short."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

import pytest

from lockline.backends import pool as pool_module
from lockline.backends.redis.connection import Connections
from lockline.backends.redis.target import understand
from lockline.backends.resp import connection_blocking
from lockline.backends.resp.commands import PING
from lockline.backends.resp.connection_blocking import BlockingLink
from lockline.backends.resp.errors import NoAnswer
from lockline.runtime import clock
from lockline.runtime.blocking import run
from tests.cutting import in_a_thread_of_its_own
from tests.instructions import look_at_instructions, stop_looking
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer
from tests.tier import sample

pytestmark = pytest.mark.server

OURS = {pool_module.__file__, connection_blocking.__file__}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that a busy machine keeps from its turn is not passed over by those behind it."""
    monkeypatch.setattr(pool_module, "LOOK_AGAIN", 60.0)


@pytest.fixture
def port_of(server: RedisServer) -> Iterator[Callable[[int], Connections]]:
    ports: list[Connections] = []

    def make(most: int) -> Connections:
        ports.append(Connections(understand(server.url, "blocking", {}), partial(BlockingLink, most=most)))
        return ports[-1]

    yield make
    for port in ports:
        port.close()


def pool_in(port: Connections, server: RedisServer) -> BlockingLink:
    return cast(BlockingLink, port.to(server.address))


def ask(port: Connections, server: RedisServer, seconds: float = 60.0) -> Any:
    return run(port.to(server.address).ask(PING, clock.now() + seconds))


def all_can_be_had(pool: BlockingLink, most: int) -> None:
    """As many connections as there may be, at once, and no more."""
    gc.collect()
    connections = [pool.take(clock.now() + 60) for _ in range(most)]
    assert not pool._has_room()
    for connection in connections:
        pool.give_back(connection)
    assert not pool.line


@pytest.mark.usefixtures("patient")
def test_threads_get_a_connection_in_the_order_in_which_they_came(
    server: RedisServer, port_of: Callable[[int], Connections]
) -> None:
    pool = pool_in(port_of(1), server)
    connection = pool.take(clock.now() + 60)
    served: list[int] = []

    def wait(n: int) -> None:
        mine = pool.take(clock.now() + 60)
        served.append(n)
        pool.give_back(mine)

    threads = [threading.Thread(target=wait, args=(n,)) for n in range(40)]
    for n, thread in enumerate(threads):
        thread.start()
        wait_for(partial(lambda n: len(pool.line) == n + 1, n), 60, "the thread in the line")
    pool.give_back(connection)
    for thread in threads:
        thread.join(60)
    assert served == list(range(40))


@pytest.mark.usefixtures("patient")
def test_a_thread_that_gives_back_does_not_overtake_those_who_wait(
    server: RedisServer, port_of: Callable[[int], Connections]
) -> None:
    pool = pool_in(port_of(1), server)
    connection = pool.take(clock.now() + 60)
    order: list[str] = []

    def wait() -> None:
        mine = pool.take(clock.now() + 60)
        order.append("who waited")
        pool.give_back(mine)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_for(lambda: len(pool.line) == 1, 60, "the thread in the line")
    pool.give_back(connection)
    pool.give_back(pool.take(clock.now() + 60))
    order.append("who came back")
    thread.join(60)
    assert order == ["who waited", "who came back"]
    assert not pool.line


def test_whoever_gets_no_connection_in_time_leaves_the_line(
    server: RedisServer, port_of: Callable[[int], Connections]
) -> None:
    pool = pool_in(port_of(1), server)
    connection = pool.take(clock.now() + 60)
    with pytest.raises(NoAnswer, match="every connection is in use"):
        pool.take(clock.now() + 0.05)
    assert not pool.line
    pool.give_back(connection)
    all_can_be_had(pool, 1)


def test_a_connection_that_died_idle_is_replaced_before_anything_is_sent(
    server: RedisServer, port_of: Callable[[int], Connections]
) -> None:
    port = port_of(2)
    assert ask(port, server) == b"PONG"
    connection: Any
    (connection,) = pool_in(port, server).free
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    wait_for(connection.was_closed, 60, "the end of the connection")
    connection._used -= 1.0
    assert ask(port, server) == b"PONG"
    assert connection.gone


# -- cut anywhere ----------------------------------------------------------------------------------


class Cut(BaseException):
    """What a signal handler might raise."""


@contextmanager
def cut_at(step: int, ours: Container[str] = OURS) -> Iterator[list[int]]:
    """Raise in this thread before the bytecode of that number inside the pool and its connections; counts them."""
    seen = [0]

    def look(frame: FrameType) -> None:
        seen[0] += 1
        if seen[0] == step:
            stop_looking()
            raise Cut

    look_at_instructions(lambda file: file in ours, look)
    try:
        yield seen
    finally:
        stop_looking()


@pytest.mark.slow
@pytest.mark.parametrize("situation", ["warm", "cold", "in line", "broken"])
@pytest.mark.parametrize("quarter", sample(range(1), range(4)))
@in_a_thread_of_its_own
def test_an_exception_between_any_two_bytecodes_costs_no_connection(
    server: RedisServer, port_of: Callable[[int], Connections], situation: str, quarter: int
) -> None:
    # In four parts, each within the time that a test has also on a busy machine.
    port = port_of(1)
    pool = pool_in(port, server)
    apart = sample(17, 4)
    step = quarter + 1 - apart
    while True:
        step += apart
        assert step < 3000
        all_can_be_had(pool, 1)
        giver = None
        if situation == "cold":
            pool.forget()
        elif situation == "broken":
            pool.forget()
            all_can_be_had(pool, 1)
            cast(Any, pool.free[0]).sock.shutdown(2)
        elif situation == "in line":
            connection = pool.take(clock.now() + 60)
            giver = threading.Timer(0.002, pool.give_back, [connection])
            del connection
            giver.start()
        try:
            with cut_at(step) as seen:
                ask(port, server)
        except Cut:
            pass
        except NoAnswer:
            assert situation == "broken"
        finally:
            if giver is not None:
                giver.join()
                giver = None
        if seen[0] < step:
            break
    assert step > 50, "the tracer saw the pool at work"
    assert ask(port, server) == b"PONG"


def test_a_thread_that_was_struck_down_in_the_line_holds_up_nobody_for_long(
    server: RedisServer, port_of: Callable[[int], Connections], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody keeps its exception, and with that the place in the line that it never left."""
    # One look past it, not one for each turn: eighty of them would take longer than a test may.
    monkeypatch.setattr(pool_module, "LOOK_AGAIN", 4.0)
    pool = pool_in(port_of(1), server)
    connection = pool.take(clock.now() + 60)
    stuck = pool_module.Turn()
    pool.line.append(weakref.ref(stuck))
    got: list[float] = []

    def wait() -> None:
        for _ in range(20):
            pool.give_back(pool.take(clock.now() + 900))
        got.append(clock.now())

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for n, thread in enumerate(threads):
        thread.start()
        wait_for(partial(lambda n: len(pool.line) == n + 2, n), 60, "the thread in the line")
    pool.give_back(connection)
    for thread in threads:
        thread.join(120)
    assert len(got) == 4


def test_a_connection_that_was_lost_makes_room_for_those_who_wait(
    server: RedisServer, port_of: Callable[[int], Connections]
) -> None:
    port = port_of(1)
    pool = pool_in(port, server)
    connection: Any = pool.take(clock.now() + 60)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(ask(port, server)))
    thread.start()
    wait_for(lambda: len(pool.line) == 1, 60, "the thread in the line")
    # As if an exception had struck between two steps: nobody gives it back, nobody rings.
    connection = None
    gc.collect()
    thread.join(60)
    assert connection is None
    assert answers == [b"PONG"]
