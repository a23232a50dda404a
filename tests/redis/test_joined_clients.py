"""A crowd of one client on one line: few calls, everybody its own answer, whatever happens to them on the way."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from redis.crc import key_slot

import lockline
from lockline import LocklineError, aio
from lockline.backends.redis.commands import key_of
from lockline.backends.redis.joined import Bunch
from tests.redis.test_together import on_a_loop
from tests.servers.process import wait_for
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisCluster, RedisServer

pytestmark = pytest.mark.server

ROUNDS = 40
Grants = list[tuple[int, float, float]]


class Watch:
    """What becomes of bunches: how many there were, and how many had to be sent one by one."""

    def __init__(self) -> None:
        self.done = self.apart = 0

    def is_past(self, many: int) -> bool:
        """Whether more than that were done."""
        return self.done > many


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watch = Watch()
    spread = Bunch.spread

    def note(bunch: Bunch, reply: Any) -> Any:
        answers = spread(bunch, reply)
        if answers is None:
            watch.apart += 1
        else:
            watch.done += 1
        return answers

    monkeypatch.setattr(Bunch, "spread", note)
    return watch


def assert_in_order(grants: Grants) -> None:
    """Nobody was inside together, and all came in the order of their tickets."""
    for (before, _, left), (after, got, _) in pairwise(sorted(grants, key=lambda grant: grant[1])):
        assert left <= got
        assert before < after


class Threads:
    """Threads that take one lock of one client again and again, until they are told to stop."""

    def __init__(self, client: lockline.Client, many: int) -> None:
        self.grants: Grants = []
        self.problems: list[BaseException] = []
        self._client = client
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._take) for _ in range(many)]

    def _take(self) -> None:
        lock = self._client.lock("x", ttl=60, timeout=120)
        while not self._stop.is_set():
            try:
                with lock as lease:
                    got = time.monotonic()
                    self.grants.append((lease.token, got, time.monotonic()))
            except LocklineError as problem:
                self.problems.append(problem)

    def __enter__(self) -> Threads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)


@contextmanager
def calls(server: RedisServer) -> Iterator[list[int]]:
    """How many scripts the server has run meanwhile."""

    def now() -> int:
        stats = server.command("INFO", "commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))

    told: list[int] = []
    before = now()
    yield told
    told.append(now() - before)


async def crowd(client: aio.Client, rounds: int, many: int = 32) -> Grants:
    grants: Grants = []

    async def one() -> None:
        lock = client.lock("x", ttl=60)
        for _ in range(rounds):
            async with lock as lease:
                got = time.monotonic()
                grants.append((lease.token, got, time.monotonic()))

    await asyncio.gather(*(one() for _ in range(many)))
    return grants


@on_a_loop
async def test_a_crowd_of_tasks_needs_far_fewer_calls_than_it_has_turns(server: RedisServer) -> None:
    async with aio.connect(server.url) as client:
        with calls(server) as told:
            grants = await crowd(client, 10)
    assert_in_order(grants)
    assert len(grants) == 320
    assert told[0] < len(grants)


def test_a_crowd_of_threads_needs_fewer_calls_than_it_has_steps(server: RedisServer) -> None:
    with lockline.connect(server.url) as client, calls(server) as told, Threads(client, 16) as threads:
        wait_for(lambda: len(threads.grants) > 500, 120, "five hundred turns")
    assert not threads.problems
    assert_in_order(threads.grants)
    # Alone each turn would be two calls.
    assert told[0] < 1.9 * len(threads.grants)


def test_a_stranger_in_the_line_has_its_turns(server: RedisServer, watch: Watch) -> None:
    with (
        lockline.connect(server.url) as client,
        lockline.connect(server.url) as other,
        Threads(client, 8) as threads,
        Threads(other, 1) as stranger,
    ):
        wait_for(lambda: len(stranger.grants) > 50 and watch.done > 50, 60, "fifty turns of the stranger")
    assert not threads.problems + stranger.problems
    assert_in_order(threads.grants + stranger.grants)


def test_a_server_that_forgets_its_scripts_is_told_again_and_again(server: RedisServer, watch: Watch) -> None:
    with lockline.connect(server.url) as client, Threads(client, 8) as threads:
        for _ in range(8):
            server.command("SCRIPT", "FLUSH")
            done = watch.done
            wait_for(lambda done=done: watch.done > done + 3, 60, "some bunches")  # type: ignore[misc]
    assert not threads.problems
    assert watch.apart
    assert_in_order(threads.grants)


@on_a_loop
async def test_answers_that_are_lost_on_the_way_cost_nobody_its_turn(server: RedisServer, watch: Watch) -> None:
    with Proxy(server.address) as proxy:
        async with aio.connect(f"redis://127.0.0.1:{proxy.port}") as client:
            working = asyncio.create_task(crowd(client, ROUNDS))
            for _ in range(3):
                await asyncio.to_thread(wait_for, partial(watch.is_past, watch.done + 3), 60, "some bunches")
                proxy.cut()
            grants = await working
    assert_in_order(grants)
    assert len(grants) == ROUNDS * 32
    with lockline.connect(server.url) as client:
        assert not client.inspect("x").claims


def test_answers_that_are_lost_on_the_way_cost_no_thread_its_turn(server: RedisServer, watch: Watch) -> None:
    with (
        Proxy(server.address) as proxy,
        lockline.connect(f"redis://127.0.0.1:{proxy.port}") as client,
        Threads(client, 8) as threads,
    ):
        for _ in range(5):
            done = watch.done
            wait_for(lambda done=done: watch.done > done + 3, 60, "some bunches")  # type: ignore[misc]
            proxy.cut()
    assert not threads.problems
    assert_in_order(threads.grants)
    with lockline.connect(server.url) as client:
        assert not client.inspect("x").claims


@on_a_loop
async def test_whoever_is_cancelled_leaves_the_others_their_answers(server: RedisServer, watch: Watch) -> None:
    async with aio.connect(server.url) as client:
        working = asyncio.create_task(crowd(client, 20))
        cut = 0
        while not working.done():
            hasty = [asyncio.create_task(client.lock("x", ttl=60).acquire()) for _ in range(4)]
            for turns in range(len(hasty)):
                await asyncio.sleep(0)
                hasty[turns].cancel()
            for each in await asyncio.gather(*hasty, return_exceptions=True):
                if isinstance(each, aio.Lease):
                    await each.release()
                else:
                    assert isinstance(each, asyncio.CancelledError)
                    cut += 1
        grants = await working
        assert cut > 20
        assert watch.done
        assert_in_order(grants)
        await asyncio.to_thread(wait_for, lambda: not inspect(server), 60, "an empty line")


def inspect(server: RedisServer) -> Any:
    with lockline.connect(server.url) as client:
        return client.inspect("x").claims


def test_whoever_has_no_more_time_leaves_the_others_their_answers(server: RedisServer, watch: Watch) -> None:
    with lockline.connect(server.url) as client, Threads(client, 8) as threads:
        late = 0
        until = time.monotonic() + 120
        while late < 30 and time.monotonic() < until:
            try:
                client.lock("x", ttl=60).acquire(timeout=0.0005).release()
            except lockline.AcquireTimeout:
                late += 1
    assert late == 30
    assert not threads.problems
    assert_in_order(threads.grants)
    assert watch.done
    wait_for(lambda: not inspect(server), 60, "an empty line")


def test_a_slot_that_moves_under_a_crowd_disturbs_nobody(shards: RedisCluster, watch: Watch) -> None:
    """Whoever asks the old owner is sent on, each by itself, while the line moves and after."""
    key = key_of("x")
    slot = key_slot(key)
    here, there = shards.nodes[slot * 3 // 16384], shards.nodes[(slot * 3 // 16384 + 1) % 3]
    with lockline.connect(shards.url) as client, Threads(client, 8) as threads:
        wait_for(lambda: watch.done > 20, 60, "some bunches")
        there.command("CLUSTER", "SETSLOT", slot, "IMPORTING", shards.id_of(here))
        here.command("CLUSTER", "SETSLOT", slot, "MIGRATING", shards.id_of(there))
        here.command("MIGRATE", "127.0.0.1", there.port, key, 0, 5000)
        turns = len(threads.grants)
        wait_for(lambda: len(threads.grants) > turns + 50, 60, "turns while it is half moved")
        for node in (there, here, *shards.nodes):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", shards.id_of(there))
        done = watch.done
        wait_for(lambda: watch.done > done + 20, 60, "bunches on the other shard")
    assert watch.apart
    assert not threads.problems
    assert_in_order(threads.grants)
    there.command("DEL", key)
    for node in (here, there, *shards.nodes):
        node.command("CLUSTER", "SETSLOT", slot, "NODE", shards.id_of(here))
