"""What code on redis-py's lock leaves behind: a lock that is never released, a token that travels."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockNotOwnedError

from lockline.drop_in import AsyncLock, Lock, aclose, client_of
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.server

NEVER_RELEASED = """
import sys, redis
from lockline.drop_in import Lock
client = redis.Redis(port=int(sys.argv[1]))
kind = {"ours": Lock, "bridged": lambda *a, **k: Lock(*a, **k, bridge=True), "theirs": redis.lock.Lock}[sys.argv[2]]
print(client.lock("nightly-" + sys.argv[2], timeout=600, lock_class=kind).acquire(blocking=False))
"""

RELEASED_BY_TOKEN = """
import sys, redis
from lockline.drop_in import Lock
client = redis.Redis(port=int(sys.argv[1]))
lock = Lock(client, sys.argv[3], timeout=600, bridge=sys.argv[2] == "bridged")
lock.local.token = sys.argv[4].encode()
lock.release()
"""


def python(program: str, *arguments: object) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    return ran.stdout + ran.stderr


@pytest.mark.parametrize("kind", ["theirs", "ours", "bridged"])
def test_a_lock_with_a_timeout_that_is_never_released_outlives_its_process(server: RedisServer, kind: str) -> None:
    said = [python(NEVER_RELEASED, server.port, kind) for _ in range(3)]
    assert said == ["True\n", "False\n", "False\n"]


@pytest.mark.parametrize("kind", ["ours", "bridged"])
def test_a_token_of_another_process_releases_the_lock(server: RedisServer, kind: str) -> None:
    name, bridged = f"handed-{kind}", kind == "bridged"
    with redis.Redis(port=server.port) as client, redis.Redis(port=server.port) as next_one:
        lock = Lock(client, name, timeout=600, bridge=bridged)
        assert lock.acquire()
        assert python(RELEASED_BY_TOKEN, server.port, kind, name, lock.local.token.decode()) == ""
        assert not lock.locked()
        assert Lock(next_one, name, timeout=600, bridge=bridged).acquire(blocking_timeout=60)
        assert "LockNotOwnedError" in python(RELEASED_BY_TOKEN, server.port, kind, name, lock.local.token.decode())
        for each in (client, next_one):
            client_of(each, bridge=bridged).close()


def test_a_forked_child_releases_the_lock_of_its_parent(server: RedisServer) -> None:
    with redis.Redis(port=server.port) as client:
        lock = Lock(client, "forked", timeout=600)
        assert lock.acquire()
        child = os.fork()
        if child == 0:
            try:
                lock.release()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        assert not lock.locked()
        with pytest.raises(LockNotOwnedError):
            lock.release()
        client_of(client).close()


def test_so_it_is_in_asyncio(server: RedisServer) -> None:
    async def story() -> None:
        client: Any = redis.asyncio.Redis(port=server.port)
        lock, worker = AsyncLock(client, "task", timeout=600), AsyncLock(client, "task", timeout=600)
        assert await lock.acquire()
        worker.local.token = lock.local.token
        await worker.release()
        assert not await lock.locked()
        assert await lock.acquire(blocking_timeout=60)
        await aclose(client)
        # Closing its client left it to its timeout.
        assert not await AsyncLock(client, "task", timeout=600).acquire(blocking=False)
        await client.aclose()

    asyncio.run(story())
