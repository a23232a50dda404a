"""The Lockline client that stands beside each client of redis-py, for as long as that lives."""

from __future__ import annotations

import asyncio
import functools
import weakref
from typing import Any, NamedTuple

from .. import aio, sync
from ..backends import redis as redis_backend
from ..backends.redis.bridge import Bridge
from ..core.engine import Engine
from ..runtime.blocking import BlockingRuntime
from ..runtime.looping import LoopRuntime


class _Beside(NamedTuple):
    """What is open beside one client of redis.asyncio."""

    loop: asyncio.AbstractEventLoop
    client: aio.Client
    forgotten: weakref.finalize[[asyncio.AbstractEventLoop, aio.Client], Any]
    """What is done when nobody has that client any more, and nobody closed it."""


# Module state with a reason: redis-py makes a new lock object for each use and hands it nothing but its client.
_clients: weakref.WeakKeyDictionary[Any, sync.Client] = weakref.WeakKeyDictionary()
_bridged: weakref.WeakKeyDictionary[Any, sync.Client] = weakref.WeakKeyDictionary()
_loop_clients: weakref.WeakKeyDictionary[Any, _Beside] = weakref.WeakKeyDictionary()
_loop_bridged: weakref.WeakKeyDictionary[Any, _Beside] = weakref.WeakKeyDictionary()


def client_of(redis: Any, *, bridge: bool = False) -> sync.Client:
    """The Lockline client that goes with a redis-py client, for as long as that lives."""
    known = _bridged if bridge else _clients
    client = known.get(redis)
    if client is not None:
        return client
    # No mutex: a fork while another thread had it would leave it shut in the child for ever. Of two that come first, both get
    # the same, and nobody has used the other.
    made = _bridge(redis) if bridge else sync.connect(redis)
    forgotten = weakref.finalize(redis, made.close)
    client = known.setdefault(redis, made)
    if client is not made:
        forgotten.detach()
    return client


def _bridge(redis: Any) -> sync.Client:
    runtime = BlockingRuntime()
    return sync.Client(Engine(Bridge(redis_backend.connect(redis, runtime), runtime), runtime, None))


def loop_client_of(redis: Any, *, bridge: bool = False) -> aio.Client:
    """The same for a client of redis.asyncio, on the loop that runs; it is closed together with that."""
    loop = asyncio.get_running_loop()
    beside = _loop_bridged if bridge else _loop_clients
    known = beside.get(redis)
    if known is not None and known.loop is loop:
        return known.client
    if known is not None and known.loop.is_closed():
        known.forgotten.detach()
    client = _loop_bridge(redis) if bridge else aio.connect(redis)
    forgotten = weakref.finalize(redis, _close_later, loop, client)
    forgotten.atexit = False
    beside[redis] = _Beside(loop, client, forgotten)
    # There from an earlier use, or its owner's own: then the finalizer has to do.
    if "aclose" not in vars(redis):
        redis.aclose = _closing_both(redis, redis.aclose)
    return client


def _loop_bridge(redis: Any) -> aio.Client:
    runtime = LoopRuntime()
    return aio.Client(Engine(Bridge(redis_backend.connect(redis, runtime), runtime), runtime, None))


def _closing_both(redis: Any, close: Any) -> Any:
    # On the object, because the program closes what it opened itself and knows nothing of what stands beside it.
    @functools.wraps(close)
    async def both(*args: Any, **options: Any) -> None:
        try:
            await aclose(redis)
        finally:
            await close(*args, **options)

    return both


def _close_later(loop: asyncio.AbstractEventLoop, client: aio.Client) -> None:
    # Garbage is collected on any thread, and the loop may have ended with all that was on it.
    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(client.close(), loop)


async def aclose(redis: Any) -> None:
    """Release and close what Lockline opened beside this client of redis.asyncio; the client's own `aclose` does it too."""
    for beside in (_loop_clients, _loop_bridged):
        known = beside.pop(redis, None)
        if known is None:
            continue
        if known.loop is asyncio.get_running_loop():
            known.forgotten.detach()
            await known.client.close()
        else:
            known.forgotten()
