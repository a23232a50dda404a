"""The fences and the drop-in lock, with their exact types. Nothing here runs; `make check` reads it.

What goes to a database or a server as it came (a connection, a client, what a call on it gives) is the driver's own and `Any` here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, assert_type

import lockline
from lockline import aio, drop_in, fence
from lockline.fence.http import AsgiApp, WsgiApp
from lockline.fence.s3 import AsyncEntry, Entry

# -- lockline.fence: a holder is a lease, a sequencer or a bare token -----------------------------


def sql(connection: Any, lease: lockline.Lease, fresh: Callable[[], Any]) -> None:
    guard = fence.SqlFence("lockline_fence", exact=True, dialect="postgresql", fresh=fresh)
    assert_type(guard, fence.SqlFence)
    assert_type(guard.enter(connection, "orders", lease), Any)
    assert_type(guard.check(connection, "orders", 41, lock="orders/42"), Any)
    assert_type(guard.look(connection, "orders", "orders/42"), Any)
    assert_type(guard.create(connection), Any)
    assert_type(guard.ddl("sqlite"), str)


def redis(client: Any, lease: lockline.Lease) -> None:
    guard = fence.RedisFence(client)
    assert_type(guard, fence.RedisFence)
    assert_type(guard.enter("k", lease), Any)
    assert_type(guard.check("k", lease, lock="x"), Any)
    assert_type(guard.get("k", lease), Any)
    assert_type(guard.set("k", lease, "v", ttl=timedelta(seconds=5)), Any)
    assert_type(guard.hset("k", lease, {"f": "v"}), Any)
    assert_type(guard.delete("k", lease), Any)
    assert_type(guard.incr("k", lease, 2), Any)
    assert_type(guard.eval("k", lease, "return 1", keys=["other"], args=[1]), Any)
    assert_type(guard.look("k", "x"), Any)


def files(path: Path, lease: lockline.Lease) -> None:
    guard = fence.FileFence()
    assert_type(guard, fence.FileFence)
    assert_type(guard.enter(path, lease), None)
    assert_type(guard.read(path, lease), bytes)
    assert_type(guard.replace("name", lease, b"data"), None)
    assert_type(guard.append(path, 41, "data", lock="x"), None)
    assert_type(guard.look(path, "x"), fence.Mark | None)


async def looped_files(path: Path, lease: aio.Lease) -> None:
    guard = fence.AsyncFileFence()
    assert_type(guard, fence.AsyncFileFence)
    assert_type(await guard.enter(path, lease), None)
    assert_type(await guard.read(path, lease), bytes)
    assert_type(await guard.replace("name", lease, b"data"), None)
    assert_type(await guard.append(path, 41, "data", lock="x"), None)


def s3(client: Any, lease: lockline.Lease) -> None:
    guard = fence.S3Fence(client, "bucket")
    assert_type(guard, fence.S3Fence)
    entry = guard.enter("k", lease)
    assert_type(entry, Entry)
    assert_type(entry.body, bytes | None)
    assert_type(entry.put(b"data", ContentType="text/plain"), None)
    assert_type(entry.delete(), None)
    assert_type(guard.put("k", lease, "data", lock="x", ContentType="text/plain"), None)
    assert_type(guard.delete("k", 41, lock="x"), None)
    assert_type(guard.verify(), None)
    assert_type(guard.look("k", "x"), fence.Mark | None)


async def looped_s3(client: Any, lease: aio.Lease) -> None:
    guard = fence.AsyncS3Fence(client, "bucket")
    assert_type(guard, fence.AsyncS3Fence)
    entry = await guard.enter("k", lease)
    assert_type(entry, AsyncEntry)
    assert_type(entry.body, bytes | None)
    assert_type(await entry.put(b"data"), None)
    assert_type(await entry.delete(), None)
    assert_type(await guard.put("k", lease, "data"), None)
    assert_type(await guard.delete("k", 41, lock="x"), None)
    assert_type(await guard.verify("k"), None)
    assert_type(await guard.look("k", "x"), fence.Mark | None)


def http(asgi: AsgiApp, wsgi: WsgiApp, engine: Any, client: Any, response: Any) -> None:
    on_files, on_sql, on_redis = fence.FileMarks("/var/lib/marks"), fence.SqlMarks(engine), fence.RedisMarks(client)
    for marks in (on_files, on_sql, on_redis):
        guard = fence.HttpFence(marks, optional=("GET",), patience=timedelta(seconds=5), largest=1 << 20)
        assert_type(guard, fence.HttpFence)
        assert_type(guard.asgi(asgi), AsgiApp)
        assert_type(guard.wsgi(wsgi), WsgiApp)
        assert_type(marks.look("r", "x"), fence.Mark | None)
    assert_type(on_files.sweep(unused=timedelta(days=1)), int)
    assert_type(on_sql.close(), None)
    assert_type(fence.raise_if_stale(response), None)


def values(offer: fence.Offer, mark: fence.Mark, stale: fence.StaleToken, again: fence.ReadAgain) -> None:
    sequencer = fence.parse_sequencer("text")
    assert_type(sequencer, fence.Sequencer)
    assert_type(offer.token, int)
    assert_type(mark.token, int)
    assert_type(offer.shown, int | str)
    assert_type(mark.shown, int | str)
    assert_type(stale, lockline.StaleToken)
    root: lockline.LocklineError = again
    assert root


# -- lockline.drop_in: as redis-py's own -----------------------------------------------------------


def dropped_in(redis: Any) -> None:
    lock = drop_in.Lock(redis, b"x", 10, 0.1, True, 5, True, raise_on_release_error=False)
    assert_type(lock, drop_in.Lock)
    assert_type(lock.name, str)
    assert_type(lock.timeout, float | None)
    assert_type(lock.acquire(), bool)
    assert_type(lock.acquire(0.1, True, 5), bool)
    assert_type(lock.release(), None)
    assert_type(lock.extend(5, replace_ttl=True), Literal[True])
    assert_type(lock.reacquire(), Literal[True])
    assert_type(lock.owned(), bool)
    assert_type(lock.locked(), bool)
    assert_type(lock.lease, lockline.Lease | None)
    with lock as same:
        assert_type(same, drop_in.Lock)
    assert_type(drop_in.client_of(redis), lockline.Client)
    assert_type(drop_in.Lock(redis, 42, bridge=True).bridge, bool)


async def dropped_in_on_a_loop(redis: Any) -> None:
    lock = drop_in.AsyncLock(redis, 42, timeout=10)
    assert_type(lock, drop_in.AsyncLock)
    assert_type(await lock.acquire(), bool)
    assert_type(await lock.acquire(True, 5), bool)
    assert_type(await lock.release(), None)
    assert_type(await lock.extend(5, replace_ttl=True), Literal[True])
    assert_type(await lock.reacquire(), Literal[True])
    assert_type(await lock.owned(), bool)
    assert_type(await lock.locked(), bool)
    assert_type(lock.lease, aio.Lease | None)
    async with lock as same:
        assert_type(same, drop_in.AsyncLock)
    assert_type(drop_in.loop_client_of(redis), aio.Client)
    assert_type(await drop_in.aclose(redis), None)
