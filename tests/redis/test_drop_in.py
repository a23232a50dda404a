"""redis-py's lock interface on Lockline: what code on that lock relies on still holds."""

from __future__ import annotations

import asyncio
import gc
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError, LockNotOwnedError

from lockline import ConfigError, sync
from lockline.drop_in import AsyncLock, Lock, _clients, aclose, client_of
from tests.calm import calm
from tests.redis.renewed import TTL, wait_for_renewal
from tests.servers.process import wait_for
from tests.servers.redis import RedisServer
from tests.tier import sample

pytestmark = pytest.mark.server


# What redis-py makes of answers is its own: Lockline has connections of its own. test_bridge.py runs with the other.
@pytest.fixture(params=sample([False], [False, True]), ids=sample(["bytes"], ["bytes", "decoded"]))
def client(server: RedisServer, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, decode_responses=request.param) as client:
        yield client
        # The Lockline client goes with its redis-py client; here a bit earlier.
        lockline_client = _clients.pop(client, None)
        if lockline_client is not None:
            lockline_client.close()


def test_it_has_every_public_method_of_the_original() -> None:
    for ours, theirs in ((Lock, redis.lock.Lock), (AsyncLock, redis.asyncio.lock.Lock)):
        for name in ("acquire", "release", "extend", "reacquire", "owned", "locked"):
            known = list(inspect.signature(getattr(theirs, name)).parameters)
            assert list(inspect.signature(getattr(ours, name)).parameters) == known


def test_one_argument_moves_a_lock_over(client: redis.Redis) -> None:
    lock = client.lock("x", timeout=60, lock_class=Lock)
    assert not lock.locked()
    with lock as held:
        assert held is lock
        assert lock.locked()
        assert lock.owned()
        assert lock.lease.token > 0
        other = client.lock("x", timeout=60, lock_class=Lock)
        assert not other.acquire(blocking=False)
        assert not other.owned()
    assert not lock.locked()
    assert not lock.owned()


@pytest.mark.parametrize(
    ("name", "text"),
    [(42, "42"), (-7, "-7"), (1.5, "1.5"), (10**18, str(10**18)), (b"bytes", "bytes"), (memoryview(b"view"), "view")],
)
def test_a_name_is_the_key_that_redis_py_would_make_of_it(client: redis.Redis, name: Any, text: str) -> None:
    client.set(name, "by redis-py")
    assert client.get(text) in ("by redis-py", b"by redis-py")
    with Lock(client, name, timeout=60) as lock:
        assert lock.name == text
        assert not Lock(client, text, timeout=60).acquire(blocking=False)
        assert not Lock(client, text.encode(), timeout=60).acquire(blocking=False)
    assert AsyncLock(client, name).name == text


@pytest.mark.parametrize("name", [True, None, ["a"], object()])
def test_a_name_that_redis_py_refuses_is_refused(client: redis.Redis, name: Any) -> None:
    with pytest.raises(redis.DataError):
        client.set(name, "x")
    with pytest.raises(redis.DataError, match="Invalid input of type"):
        Lock(client, name)


def test_a_name_that_is_no_text_is_refused_by_a_sentence(client: redis.Redis) -> None:
    with pytest.raises(ConfigError, match="no UTF-8"):
        Lock(client, b"\xff\xfe")


WITHOUT_REDIS = """
import sys
sys.modules["redis"] = None
try:
    import lockline.drop_in
except ModuleNotFoundError as missing:
    print(missing)
"""


def test_without_redis_py_the_import_says_what_to_install() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_REDIS], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'lockline[redis]'" in ran.stdout


def test_a_wait_ends_in_time(client: redis.Redis) -> None:
    held = client.lock("x", lock_class=Lock)
    assert held.acquire()
    answers = []

    def rival() -> None:
        lock = client.lock("x", blocking_timeout=0.5, lock_class=Lock)
        answers.append(lock.acquire())
        with pytest.raises(LockError), lock:
            raise AssertionError("never inside")

    thread = threading.Thread(target=rival)
    thread.start()
    thread.join(60)
    assert answers == [False]
    held.release()


def test_a_waiter_gets_it_when_it_is_released(client: redis.Redis) -> None:
    held = client.lock("x", lock_class=Lock)
    held.acquire()
    got = threading.Event()

    def rival() -> None:
        with client.lock("x", lock_class=Lock):
            got.set()

    thread = threading.Thread(target=rival)
    thread.start()
    wait_for(lambda: client_of(client).inspect("x").waiters, 60, "one that waits")
    assert not got.is_set()
    held.release()
    assert got.wait(60)
    thread.join(60)


def test_release_without_hold_and_after_expiry_are_told_apart(client: redis.Redis) -> None:
    lock = client.lock("x", timeout=0.5, lock_class=Lock)
    with pytest.raises(LockError):
        lock.release()
    lock.acquire()
    time.sleep(0.6)
    assert not lock.owned()
    with pytest.raises(LockNotOwnedError):
        lock.release()
    with pytest.raises(LockError):
        lock.release()


def test_extend_and_reacquire_lengthen(client: redis.Redis) -> None:
    lock = client.lock("x", timeout=40, lock_class=Lock)
    with pytest.raises(LockError):
        lock.extend(20)
    lock.acquire()
    assert lock.extend(20) is True
    assert lock.lease.remaining() > 42
    assert lock.extend(200, replace_ttl=True) is True
    assert 170 < lock.lease.remaining() <= 200
    assert lock.reacquire() is True
    assert lock.extend(10, replace_ttl=True) is True
    assert lock.lease.remaining() > 150, "what was promised once is never shortened"
    lock.release()
    endless = client.lock("y", lock_class=Lock)
    endless.acquire()
    with pytest.raises(LockError, match="no timeout"):
        endless.extend(1)
    with pytest.raises(LockError, match="no timeout"):
        endless.reacquire()
    endless.release()


def test_a_thread_sees_only_its_own_hold(client: redis.Redis) -> None:
    lock = client.lock("x", lock_class=Lock)
    lock.acquire()
    errors = []

    def other() -> None:
        try:
            lock.release()
        except LockError as problem:
            errors.append(problem)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(60)
    assert len(errors) == 1
    lock.release()


def test_without_thread_local_another_thread_may_release(client: redis.Redis) -> None:
    lock = client.lock("x", thread_local=False, lock_class=Lock)
    lock.acquire()
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join(60)
    assert not lock.locked()


def test_a_release_leaves_the_lease_of_the_next_taker_alone(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = client.lock("x", timeout=60, thread_local=False, lock_class=Lock)
    lock.acquire()
    taken = threading.Event()
    release = sync.Lease.release

    def preempted(lease: sync.Lease) -> None:
        release(lease)
        assert taken.wait(60)

    def rival() -> None:
        assert lock.acquire(blocking_timeout=60)
        taken.set()

    thread = threading.Thread(target=rival)
    thread.start()
    with monkeypatch.context() as patch:
        patch.setattr(sync.Lease, "release", preempted)
        lock.release()
    thread.join(60)
    assert lock.owned()
    lock.release()
    assert not lock.locked()


def test_a_shared_lock_outlives_the_thread_that_took_it(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockline.drop_in.KEPT_FOR", TTL)
    lock = client.lock("x", thread_local=False, lock_class=Lock)
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join(60)
    wait_for_renewal(lock.lease)
    assert lock.owned()
    lock.release()


def test_a_thread_may_wait_again_for_a_shared_lock_that_another_releases(client: redis.Redis) -> None:
    lock = client.lock("x", timeout=60, thread_local=False, lock_class=Lock)
    lock.acquire()
    thread = threading.Timer(0.1, lock.release)
    thread.start()
    assert lock.acquire()
    thread.join(60)
    lock.release()


def test_a_thread_that_asks_again_for_its_lock_waits_no_longer_than_it_said(client: redis.Redis) -> None:
    lock = client.lock("x", timeout=60, lock_class=Lock)
    lock.acquire()
    again = client.lock("x", timeout=60, lock_class=Lock)
    began = time.monotonic()
    # One that waited for the lock itself would get it, a minute later.
    assert not again.acquire(blocking_timeout=0.2)
    assert time.monotonic() - began >= 0.2
    assert not again.acquire(blocking=False)
    with pytest.raises(LockError, match="wait for itself"):
        again.acquire()
    lock.release()


def test_a_thread_gets_its_lock_again_when_that_ran_out_meanwhile(client: redis.Redis) -> None:
    lock = client.lock("x", timeout=0.5, lock_class=Lock)
    lock.acquire()
    again = client.lock("x", timeout=60, lock_class=Lock)
    # It looks when its own time is over, by when that of the other is.
    assert again.acquire(blocking_timeout=3)
    with pytest.raises(LockNotOwnedError):
        lock.release()
    again.release()


def test_what_the_server_forgot_is_no_longer_owned(client: redis.Redis, server: RedisServer) -> None:
    lock = client.lock("x", timeout=60, lock_class=Lock)
    lock.acquire()
    server.command("FLUSHALL")
    assert not lock.owned()
    with redis.Redis(port=server.port) as elsewhere:
        other = elsewhere.lock("x", timeout=60, lock_class=Lock)
        assert other.acquire(blocking=False)
        assert other.owned()
        assert not lock.owned()
        with pytest.raises(LockNotOwnedError):
            lock.release()
        other.release()


def test_a_server_that_died_does_not_hide_the_bodys_own_error(own_server: RedisServer) -> None:
    def body(client: redis.Redis) -> None:
        with client.lock("x", timeout=1, lock_class=Lock):
            own_server.kill()
            raise ValueError("mine")

    with redis.Redis(port=own_server.port) as client:
        with pytest.raises(ValueError, match="mine"):
            body(client)
        own_server.start()
        with pytest.raises(redis.ConnectionError), Lock(client, "x", timeout=1, raise_on_release_error=False):
            own_server.kill()
        _clients.pop(client).close()


def test_the_bodys_own_error_comes_out_of_the_block(client: redis.Redis) -> None:
    def body() -> None:
        with client.lock("x", timeout=0.5, lock_class=Lock):
            time.sleep(0.6)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        body()
    with Lock(client, "x", timeout=0.5, raise_on_release_error=False):
        time.sleep(0.6)
    with pytest.raises(LockNotOwnedError), client.lock("x", timeout=0.5, lock_class=Lock):
        time.sleep(0.6)


def test_a_token_of_the_callers_own_is_refused_and_not_ignored(client: redis.Redis) -> None:
    with pytest.raises(ConfigError, match="token"):
        client.lock("x", lock_class=Lock).acquire(token="mine")


def test_a_server_that_is_gone_is_redis_pys_connection_error() -> None:
    with redis.Redis(port=1) as client:
        lock = client.lock("x", timeout=0.2, lock_class=Lock)
        with pytest.raises(redis.ConnectionError):
            lock.acquire()
        _clients.pop(client).close()


def test_the_lockline_client_goes_with_its_redis_client(server: RedisServer) -> None:
    client = redis.Redis(port=server.port)
    with client.lock("x", lock_class=Lock):
        pass
    inner = _clients[client]
    client.close()
    del client
    gc.collect()
    assert inner._engine.closed


def run(server: RedisServer, story: Callable[[redis.asyncio.Redis], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        async with redis.asyncio.Redis(port=server.port) as client:
            await story(client)

    asyncio.run(body())


def test_asyncio_the_whole_interface(server: RedisServer) -> None:
    async def story(client: redis.asyncio.Redis) -> None:
        lock = client.lock("x", timeout=60, lock_class=AsyncLock)  # type: ignore[arg-type]
        assert not await lock.locked()
        async with lock:
            assert await lock.locked()
            assert await lock.owned()
            assert await lock.extend(5) is True
            assert await lock.reacquire() is True
            other = client.lock("x", timeout=5, lock_class=AsyncLock)  # type: ignore[arg-type]
            assert not await other.acquire(blocking=False)
            assert not await asyncio.create_task(other.acquire(blocking_timeout=0.5))
        assert not await lock.locked()
        with pytest.raises(LockError):
            await lock.release()

    run(server, story)


def test_asyncio_tasks_take_turns(server: RedisServer) -> None:
    async def story(client: redis.asyncio.Redis) -> None:
        inside = most = 0

        async def one() -> None:
            nonlocal inside, most
            async with client.lock("x", lock_class=AsyncLock):  # type: ignore[arg-type]
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.001)
                inside -= 1

        await asyncio.gather(*(one() for _ in range(30)))
        assert most == 1

    run(server, story)


def test_asyncio_a_lock_outlives_the_task_that_took_it(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockline.drop_in.KEPT_FOR", TTL)

    async def story(client: redis.asyncio.Redis) -> None:
        lock = client.lock("x", lock_class=AsyncLock)  # type: ignore[arg-type]
        assert await asyncio.create_task(lock.acquire())
        await asyncio.to_thread(wait_for_renewal, lock.lease)  # type: ignore[attr-defined]
        assert await lock.owned()
        await lock.release()

    run(server, story)


def test_asyncio_a_server_that_died_does_not_hide_the_bodys_own_error(own_server: RedisServer) -> None:
    async def story(client: redis.asyncio.Redis) -> None:
        async with client.lock("x", timeout=1, lock_class=AsyncLock):  # type: ignore[arg-type]
            own_server.kill()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(own_server, story)


def test_asyncio_what_the_server_forgot_is_no_longer_owned(server: RedisServer) -> None:
    async def story(client: redis.asyncio.Redis) -> None:
        lock = client.lock("x", timeout=60, lock_class=AsyncLock)  # type: ignore[arg-type]
        await lock.acquire()
        server.command("FLUSHALL")
        assert not await lock.owned()
        with pytest.raises(LockNotOwnedError):
            await lock.release()

    run(server, story)


async def closed(client: redis.asyncio.Redis) -> None:
    await client.aclose()


async def closed_by_hand(client: redis.asyncio.Redis) -> None:
    await aclose(client)
    await client.aclose()


async def forgotten(client: redis.asyncio.Redis) -> None:
    await client.connection_pool.disconnect()


@pytest.mark.parametrize("end", [closed, closed_by_hand, forgotten])
def test_asyncio_nothing_is_left_of_a_client_that_is_gone(
    own_server: RedisServer, end: Callable[[redis.asyncio.Redis], Coroutine[Any, Any, None]]
) -> None:
    def connections() -> int:
        return int(own_server.command("INFO", "clients")["connected_clients"])

    async def one() -> None:
        client = redis.asyncio.Redis(port=own_server.port)
        for _ in range(2):
            async with client.lock("x", timeout=5, lock_class=AsyncLock):  # type: ignore[arg-type]
                pass
            await end(client)

    async def story() -> None:
        before = connections()
        for _ in range(3):
            await one()
        gc.collect()
        deadline = calm() + 60
        while connections() > before or len(asyncio.all_tasks()) > 1:
            assert calm() < deadline
            await asyncio.sleep(0.05)
            gc.collect()

    asyncio.run(story())


@pytest.mark.slow
def test_a_child_can_lock_that_was_forked_while_another_thread_took_its_first_lock(server: RedisServer) -> None:
    story = """
import os, signal, sys, threading, redis
from lockline.drop_in import Lock, client_of

def first_locks():
    while True:
        client_of(redis.Redis(port=int(sys.argv[1]))).close()

# A fork while a thread is at an import leaves that module shut in the child: what redis-py imports late is imported now.
client_of(redis.Redis(port=int(sys.argv[1]))).close()
for _ in range(3):
    threading.Thread(target=first_locks, daemon=True).start()
# With a switch every few instructions a fork finds each thread somewhere else.
sys.setswitchinterval(0.0001)
for number in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        with Lock(redis.Redis(port=int(sys.argv[1])), f"x{number}", timeout=20):
            os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        os._exit(1)
os._exit(0)
"""
    assert subprocess.run([sys.executable, "-c", story, str(server.port), str(sample(6, 20))]).returncode == 0
