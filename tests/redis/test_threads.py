"""More threads than connections: each has its turn in order of arrival, and the keeper never stands behind them."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable

import pytest

import lockline
from lockline.runtime import clock
from tests.redis.renewed import TTL, wait_for_renewal
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer
from tests.tier import sample

pytestmark = pytest.mark.server

Connect = Callable[..., lockline.Client]


class Crowd:
    """Threads of one client, each busy with a free name of its own, for as long as the block lasts."""

    def __init__(self, client: lockline.Client, number: int) -> None:
        self._client = client
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(number)]
        self.pairs = [0] * number
        self.problems: list[BaseException] = []

    def _work(self, n: int) -> None:
        lock = self._client.lock(f"free-{n}")
        try:
            while not self._stop.is_set():
                with lock:
                    pass
                self.pairs[n] += 1
        except BaseException as problem:
            self.problems.append(problem)

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)


@pytest.mark.parametrize("number", sample([30], [50, 300]))
def test_busy_threads_on_free_names_never_make_a_held_lease_late(
    server: RedisServer, connect: Connect, number: int
) -> None:
    client = connect(server.url)
    lease = client.lock("held", ttl=TTL).acquire()
    with Crowd(client, number) as crowd:
        wait_for_renewal(lease)
        wait_for(lambda: min(crowd.pairs) > 0 or crowd.problems, 60, "everybody's turn")
    assert not crowd.problems, crowd.problems[:2]
    lease.release()


def test_the_slowest_of_many_threads_is_not_far_behind_the_others(server: RedisServer, connect: Connect) -> None:
    with Crowd(connect(server.url, max_connections=2), 16) as crowd:
        # From when all are there, for so many turns, however long that takes: of a few nothing can be said.
        wait_for(lambda: min(crowd.pairs) > 0, 60, "everybody's first turn")
        before = list(crowd.pairs)
        wait_for(lambda: sum(crowd.pairs) > sum(before) + 16 * 100, 120, "a hundred turns each")
        turns = [now - then for then, now in zip(before, list(crowd.pairs), strict=True)]
    assert not crowd.problems
    # Nothing is said of the fastest: on a busy machine a thread that is awake goes on while the others are still to be woken.
    assert min(turns) * 3 > statistics.median(turns), sorted(turns)


def test_busy_threads_use_no_more_connections_than_they_may(server: RedisServer, connect: Connect) -> None:
    client = connect(server.url, max_connections=3)
    lease = client.lock("held", ttl=60).acquire()
    with Crowd(client, 20) as crowd:
        wait_for(lambda: min(crowd.pairs) > 0, 60, "everybody's turn")
        theirs = [each for each in server.client().client_list() if each["cmd"] != "client|list"]
    # The keeper has one of its own, and there may be a subscription.
    assert len(theirs) <= 5, theirs
    lease.release()


def test_a_lease_is_renewed_while_every_connection_of_the_threads_is_in_use(
    server: RedisServer, connect: Connect
) -> None:
    client = connect(server.url, max_connections=2)
    lease = client.lock("held", ttl=TTL).acquire()
    pool = client._engine.backend._connections.to(server.address)  # type: ignore[attr-defined]
    connections = [pool.take(clock.now() + 60) for _ in range(2)]
    wait_for_renewal(lease)
    lease.extend(1)
    for connection in connections:
        pool.give_back(connection)
    lease.release()
