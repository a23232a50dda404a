"""Lockline behind redis-py's `Lock` interface: code that uses that lock moves over by one line.

    from lockline.drop_in import Lock                # AsyncLock for redis.asyncio

    with redis_client.lock("orders/42", timeout=10, lock_class=Lock) as lock:
        write(order, token=lock.lease.token)         # and a fencing token comes with it

What is better than before: waiters are served in order and told of their turn, a lock without `timeout` is kept alive
while its holder lives and not for ever after its death, a release whose reply was lost can be repeated, and `lock.lease`
has the fencing token and the loss signal. What must be known: Lockline's locks and redis-py's do not see each other, so
all programs that share a name move together; `sleep` has no meaning, because nobody polls; `acquire(token=...)` is refused.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace, TracebackType
from typing import Any, Final, Literal, cast

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import LockError, LockNotOwnedError

from . import aio, sync
from .errors import AcquireTimeout, BackendUnavailable, ConfigError, LeaseLost, NotHeld, WouldDeadlock

log = logging.getLogger("lockline")

KEPT_FOR: Final = 10.0
"""The ttl of a lock without `timeout`: renewed while its holder lives, over that long after its death."""

# Module state with a reason: redis-py makes a new lock object for each use and hands it nothing but its client.
_clients: weakref.WeakKeyDictionary[Any, sync.Client] = weakref.WeakKeyDictionary()
_loop_clients: weakref.WeakKeyDictionary[Any, tuple[asyncio.AbstractEventLoop, aio.Client]] = (
    weakref.WeakKeyDictionary()
)
_mutex = threading.Lock()


def client_of(redis: Any) -> sync.Client:
    """The Lockline client that goes with a redis-py client, for as long as that lives."""
    with _mutex:
        client = _clients.get(redis)
        if client is None:
            client = _clients[redis] = sync.connect(redis)
            weakref.finalize(redis, client.close)
        return client


def loop_client_of(redis: Any) -> aio.Client:
    """The same for a client of redis.asyncio, on the loop that runs."""
    loop = asyncio.get_running_loop()
    known = _loop_clients.get(redis)
    if known is None or known[0] is not loop:
        known = _loop_clients[redis] = (loop, aio.connect(redis))
    return known[1]


async def aclose(redis: Any) -> None:
    """Release and close what Lockline opened beside this client of redis.asyncio; call it before the client's own."""
    known = _loop_clients.pop(redis, None)
    if known is not None:
        await known[1].close()


def _no_lease(what: str) -> LockError:
    return LockError(f"Cannot {what} a lock that's not owned or is already unlocked.")


@contextmanager
def _unreachable() -> Iterator[None]:
    try:
        yield
    except BackendUnavailable as problem:
        raise RedisConnectionError(str(problem)) from problem


@contextmanager
def _acquiring() -> Iterator[None]:
    try:
        with _unreachable():
            yield
    except WouldDeadlock as problem:
        raise LockError(str(problem)) from problem


class _Settings:
    """What both flavours take, and how they read it."""

    def __init__(
        self,
        redis: Any,
        name: str | bytes | memoryview,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        self.redis = redis
        self.name = name if isinstance(name, str) else bytes(name).decode()
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = threading.local() if self.thread_local else SimpleNamespace()

    def _ttl(self) -> float:
        return KEPT_FOR if self.timeout is None else self.timeout

    def _patience(
        self, blocking: bool | None, blocking_timeout: float | None, token: object
    ) -> tuple[bool, float | None]:
        if token is not None:
            raise ConfigError("acquire(token=...) is not possible: the token is the server's, see lock.lease.token")
        blocking = self.blocking if blocking is None else blocking
        return blocking, self.blocking_timeout if blocking_timeout is None else blocking_timeout

    def _extension(self, additional_time: float, replace_ttl: bool, remaining: float) -> float:
        if self.timeout is None:
            raise LockError("Cannot extend a lock with no timeout")
        return additional_time if replace_ttl else remaining + additional_time

    @contextmanager
    def _releasing(self) -> Iterator[Any]:
        """The lease that is given back in this block, with redis-py's errors."""
        lease = self._lease()
        if lease is None:
            raise _no_lease("release")
        try:
            with _unreachable():
                # After this error it is still ours as far as anybody knows: another release() may succeed.
                yield lease
        except LeaseLost as problem:
            self.local.lease = None
            raise LockNotOwnedError("Cannot release a lock that's no longer owned") from problem
        except NotHeld as problem:
            self.local.lease = None
            raise _no_lease("release") from problem
        self.local.lease = None

    @contextmanager
    def _extending(self) -> Iterator[Any]:
        """The lease that is extended in this block, with redis-py's errors."""
        lease = self._lease()
        if lease is None:
            raise LockError("Cannot extend an unlocked lock")
        try:
            with _unreachable():
                yield lease
        except (LeaseLost, NotHeld) as problem:
            raise LockNotOwnedError("Cannot extend a lock that's no longer owned") from problem

    def _lease(self) -> Any:
        return getattr(self.local, "lease", None)

    def _taken(self, lease: sync.Lease | aio.Lease | None) -> bool:
        if lease is None:
            return False
        self.local.lease = lease
        return True

    def _left(self, problem: LockError, error: BaseException | None) -> None:
        """The release at the end of a block failed; the block's own error is never hidden."""
        if error is not None:
            error.add_note(f"and while leaving the lock: {problem}")
        elif self.raise_on_release_error:
            raise problem
        else:
            log.warning("the lock %r was unlocked or no longer owned when its block ended", self.name)


class Lock(_Settings):
    """redis-py's `Lock`, on Lockline."""

    @property
    def lease(self) -> sync.Lease | None:
        """The lease of this thread (of anybody, with thread_local=False), or None."""
        return cast(sync.Lease | None, self._lease())

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """True once the lock is held; False if it may not wait, or did not get it in time."""
        wait, timeout = self._patience(blocking, blocking_timeout, token)
        lock = client_of(self.redis).lock(self.name, self._ttl(), renew=self.timeout is None)
        with _acquiring(), suppress(AcquireTimeout):
            return self._taken(lock.acquire(timeout) if wait else lock.try_acquire())
        return False

    def release(self) -> None:
        """Give the lock back; LockNotOwnedError if it was lost before."""
        with self._releasing() as lease:
            lease.release()

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Make it good for that much longer (or for that long from now)."""
        with self._extending() as lease:
            lease.extend(self._extension(additional_time, replace_ttl, lease.remaining()))
        return True

    def reacquire(self) -> Literal[True]:
        """Make it good for its timeout again."""
        if self.timeout is None:
            raise LockError("Cannot reacquire a lock with no timeout")
        return self.extend(self.timeout, replace_ttl=True)

    def owned(self) -> bool:
        """Whether this lock holds it, by the holder's own deadline; no I/O."""
        return self.lease is not None and self.lease.valid

    def locked(self) -> bool:
        """Whether anybody holds it."""
        with _unreachable():
            return bool(client_of(self.redis).inspect(self.name).holders)

    def __enter__(self) -> Lock:
        if self.acquire():
            return self
        raise LockError("Unable to acquire lock within the time specified")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except LockError as problem:
            self._left(problem, error)


class AsyncLock(_Settings):
    """redis.asyncio's `Lock`, on Lockline."""

    def __init__(self, redis: Any, name: str | bytes | memoryview, *args: Any, **options: Any) -> None:
        super().__init__(redis, name, *args, **options)
        # On one thread a task that holds must not be taken for another: the object is the owner, as in redis.asyncio.
        self.local = SimpleNamespace()

    @property
    def lease(self) -> aio.Lease | None:
        """The lease, or None."""
        return cast(aio.Lease | None, self._lease())

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """True once the lock is held; False if it may not wait, or did not get it in time."""
        wait, timeout = self._patience(blocking, blocking_timeout, token)
        lock = loop_client_of(self.redis).lock(self.name, self._ttl(), renew=self.timeout is None)
        with _acquiring(), suppress(AcquireTimeout):
            return self._taken(await (lock.acquire(timeout) if wait else lock.try_acquire()))
        return False

    async def release(self) -> None:
        """Give the lock back; LockNotOwnedError if it was lost before."""
        with self._releasing() as lease:
            await lease.release()

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Make it good for that much longer (or for that long from now)."""
        with self._extending() as lease:
            await lease.extend(self._extension(additional_time, replace_ttl, lease.remaining()))
        return True

    async def reacquire(self) -> Literal[True]:
        """Make it good for its timeout again."""
        if self.timeout is None:
            raise LockError("Cannot reacquire a lock with no timeout")
        return await self.extend(self.timeout, replace_ttl=True)

    async def owned(self) -> bool:
        """Whether this lock holds it, by the holder's own deadline; no I/O."""
        return self.lease is not None and self.lease.valid

    async def locked(self) -> bool:
        """Whether anybody holds it."""
        with _unreachable():
            return bool((await loop_client_of(self.redis).inspect(self.name)).holders)

    async def __aenter__(self) -> AsyncLock:
        if await self.acquire():
            return self
        raise LockError("Unable to acquire lock within the time specified")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.release()
        except LockError as problem:
            self._left(problem, error)
