"""drop_in with bridge=True: redis-py's own lock of the same name is excluded too, in both directions, for the time of a move."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError

from lockline import BackendUnavailable, ConfigError
from lockline.backends.redis.bridge import TAKE
from lockline.drop_in import AsyncLock, Lock, client_of
from lockline.runtime import clock
from tests.redis.renewed import TTL, renewal_of, wait_for_renewal
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer
from tests.tier import sample

pytestmark = pytest.mark.server

Bridged = partial(Lock, bridge=True)


# test_drop_in.py runs with the other.
@pytest.fixture(params=sample([True], [False, True]), ids=sample(["decoded"], ["bytes", "decoded"]))
def client(server: RedisServer, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, decode_responses=request.param) as client:
        yield client


def test_a_redis_py_lock_keeps_a_bridged_one_out(client: redis.Redis) -> None:
    theirs, ours = client.lock("x", timeout=60), client.lock("x", timeout=60, lock_class=Bridged)
    assert theirs.acquire()
    assert ours.locked()
    assert not ours.acquire(blocking=False)
    assert not ours.acquire(blocking_timeout=0.5)
    theirs.release()
    assert ours.acquire(blocking=False)
    ours.release()
    assert not ours.locked()
    assert client.keys("x*") == []


def test_a_bridged_lock_keeps_a_redis_py_one_out(client: redis.Redis) -> None:
    theirs, ours = client.lock("x", timeout=60), client.lock("x", timeout=60, lock_class=Bridged)
    with ours:
        assert theirs.locked()
        assert not theirs.acquire(blocking=False)
        assert ours.owned()
        assert ours.lease.token > 0
    assert theirs.acquire(blocking=False)
    theirs.release()


def test_who_waits_comes_when_the_redis_py_lock_is_released(client: redis.Redis) -> None:
    theirs = client.lock("x", timeout=60)
    assert theirs.acquire()
    came = threading.Event()

    def wait() -> None:
        with client.lock("x", timeout=60, lock_class=Bridged):
            came.set()

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: client_of(client, bridge=True).inspect("x").claims, 60, "one that waits for the key")
    assert not came.is_set()
    theirs.release()
    for thread in threads:
        thread.join(60)
    assert came.is_set()


def test_a_bridged_lock_and_a_plain_one_exclude_each_other(client: redis.Redis) -> None:
    plain, ours = client.lock("x", timeout=60, lock_class=Lock), client.lock("x", timeout=60, lock_class=Bridged)
    with plain:
        assert not ours.acquire(blocking=False)
    with ours:
        assert not plain.acquire(blocking=False)


def test_without_a_timeout_the_key_is_renewed_with_the_lease(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockline.drop_in.KEPT_FOR", TTL)
    ours = client.lock("x", lock_class=Bridged)
    with ours:
        # Less than the key has at first, so that it is seen to grow; enough for a machine that stands still, or whose clock is set.
        client.pexpire("x", int(TTL * 900))
        wait_for_renewal(ours.lease)
        wait_for(lambda: client.pttl("x") / 1000 > ours.lease.remaining(), 60, "a key that outlives the lease")
        assert ours.owned()
        assert not client.lock("x", timeout=60).acquire(blocking=False)
    assert client.lock("x", timeout=30).acquire(blocking=False)


def test_an_extend_makes_both_good_for_longer(client: redis.Redis) -> None:
    ours = client.lock("x", timeout=60, lock_class=Bridged)
    with ours:
        ours.extend(60)
        assert client.pttl("x") > 70_000
        assert ours.lease.remaining() > 70


def test_a_key_that_somebody_deleted_is_a_loss(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockline.drop_in.KEPT_FOR", TTL)
    ours, theirs = client.lock("x", lock_class=Bridged), client.lock("x", timeout=60)
    assert ours.acquire()
    client.delete("x")
    assert theirs.acquire(blocking=False)
    assert not ours.owned()
    renewal_of(ours.lease)
    assert ours.lease.lost.wait(60)
    with pytest.raises(LockNotOwnedError):
        ours.release()
    assert theirs.owned(), "another one's key is left alone"
    theirs.release()


class TakesTheKey:
    """Stands between the bridge and its server while it takes the key: what is done before the first request, and after it."""

    def __init__(self, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bridge = cast(Any, client_of(client, bridge=True)._engine.backend)
        self.before: Callable[[], object] = int
        self.after: Callable[[], object] = int
        self.client, self._run, self._times = client, self.bridge._inner.channel.run, 0
        monkeypatch.setattr(self.bridge._inner.channel, "run", self)

    async def __call__(self, call: Any, *args: Any, **options: Any) -> Any:
        first = call.script is TAKE and not self.client.exists("x") and not self._times
        if first:
            self._times = 1
            self.before()
        answer = await self._run(call, *args, **options)
        if first:
            self.after()
        return answer


def in_a_thread(lock: Lock, taking: TakesTheKey) -> Callable[[], Any]:
    """Acquire it there, up to where only the key is missing; the function gives the lease, or raises what was raised."""
    done: Future[Any] = Future()

    def acquire() -> None:
        try:
            lock.acquire()
            done.set_result(lock.lease)
        except BaseException as problem:
            done.set_exception(problem)

    threading.Thread(target=acquire, daemon=True).start()
    wait_for(lambda: taking.bridge._won, 60, "its turn in the queue")
    return lambda: done.result(60)


def test_a_key_whose_answer_was_lost_is_good_for_as_long_as_the_lease(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken, no answer, the claim renewed in between, and asked again."""
    monkeypatch.setattr("lockline.drop_in.KEPT_FOR", TTL)
    theirs = client.lock("x", timeout=60)
    assert theirs.acquire()
    taking = TakesTheKey(client, monkeypatch)

    def lose_the_answer() -> None:
        (live,) = client_of(client, bridge=True)._engine._keeper.books.values()
        live.due = due = clock.now()
        wait_for(lambda: live.due > due, 60, "a renewal of the claim")
        raise BackendUnavailable("injected: the answer was lost")

    taking.after = lose_the_answer
    ours = client.lock("x", lock_class=Bridged, thread_local=False)
    got = in_a_thread(ours, taking)
    theirs.release()
    # The end of the lease first: a renewal in between, and a machine that is slow, only make the key last longer.
    ends = got()._live.ends
    kept = client.pttl("x") / 1000
    assert clock.now() + kept > ends - 0.5
    ours.release()


def test_one_that_is_evicted_while_it_takes_the_key_comes_again(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockline.drop_in.KEPT_FOR", TTL)
    theirs = client.lock("x", timeout=60)
    assert theirs.acquire()
    taking = TakesTheKey(client, monkeypatch)

    def evict() -> None:
        assert client_of(client).evict("x") == 1
        for live in list(client_of(client, bridge=True)._engine._keeper.books.values()):
            live.due = clock.now()
        wait_for(lambda: not taking.bridge._won, 60, "a renewal that finds the claim gone")

    taking.before = evict
    ours = client.lock("x", lock_class=Bridged, thread_local=False)
    got = in_a_thread(ours, taking)
    theirs.release()
    assert got().valid
    assert ours.owned()
    ours.release()
    assert client.keys("x*") == []


def test_a_key_that_is_no_lock_at_all_keeps_it_out(client: redis.Redis) -> None:
    client.rpush("x", "something")
    assert not client.lock("x", timeout=60, lock_class=Bridged).acquire(blocking_timeout=0.5)
    assert client.lrange("x", 0, -1)


def test_the_token_of_the_lock_object_is_what_stands_in_the_key(client: redis.Redis) -> None:
    ours = client.lock("x", timeout=60, lock_class=Bridged)
    assert ours.local.token is None
    with ours:
        value = client.get("x")
        assert isinstance(ours.local.token, bytes)
        assert (value.encode() if isinstance(value, str) else value) == ours.local.token
    assert ours.local.token is None
    plain = client.lock("y", timeout=60, lock_class=Lock)
    seen: list[object] = []
    with plain:
        assert isinstance(plain.local.token, bytes)
        thread = threading.Thread(target=lambda: seen.append(plain.local.token))
        thread.start()
        thread.join()
    assert seen == [None]
    with pytest.raises(LockError):
        plain.release()


@pytest.mark.parametrize("name", [42, b"42", "42", 4.5, "Ärger {x} 1"])
def test_names_are_what_redis_py_takes(client: redis.Redis, name: object) -> None:
    with client.lock(name, timeout=60, lock_class=Bridged):  # type: ignore[arg-type]
        assert not client.lock(name, timeout=60).acquire(blocking=False)  # type: ignore[arg-type]


def test_what_is_wrong_is_said_before_any_request(client: redis.Redis) -> None:
    for wrong in (1, None, "yes"):
        with pytest.raises(ConfigError):
            Lock(client, "x", bridge=wrong)  # type: ignore[arg-type]


def test_in_asyncio_both_keep_each_other_out(server: RedisServer) -> None:
    async def story() -> None:
        client = redis.asyncio.Redis(port=server.port)
        ours, theirs = AsyncLock(client, "x", timeout=60, bridge=True), client.lock("x", timeout=60)
        async with ours:
            assert await theirs.locked()
            assert not await theirs.acquire(blocking=False)
            assert await ours.owned()
        assert await theirs.acquire(blocking=False)
        assert await ours.locked()
        waiting = asyncio.create_task(ours.acquire())
        await asyncio.sleep(0.2)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not await AsyncLock(client, "x", timeout=60, bridge=True).acquire(blocking_timeout=0.5)
        await theirs.release()
        assert await ours.acquire()
        await ours.release()
        assert await client.keys("x*") == []
        await client.aclose()

    asyncio.run(story())


WORKER = """
import sys, redis
from functools import partial
from lockline.drop_in import Lock

kind, port, path, times = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
options = {} if kind == "theirs" else {"lock_class": partial(Lock, bridge=True)}
with redis.Redis(port=port) as client:
    for _ in range(times):
        with client.lock("counter", timeout=20, sleep=0.002, **options):
            with open(path) as file:
                value = int(file.read())
            with open(path, "w") as file:
                file.write(str(value + 1))
"""


def test_old_and_new_programs_together_lose_no_update(server: RedisServer, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    kinds, times = sample(("theirs", "ours"), ("theirs", "ours", "theirs", "ours")), 25
    programs = [
        subprocess.Popen([sys.executable, "-c", WORKER, kind, str(server.port), str(counter), str(times)])
        for kind in kinds
    ]
    for program in programs:
        assert program.wait(120) == 0
    assert counter.read_text() == str(len(kinds) * times)
