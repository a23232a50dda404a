"""Lockline behind redis-py's `Lock` interface: code that uses that lock moves over by one line.

    from lockline.drop_in import Lock                # AsyncLock for redis.asyncio

    with redis_client.lock("orders/42", timeout=10, lock_class=Lock) as lock:
        write(order, token=lock.lease.token)         # and a fencing token comes with it

What is better than before: waiters are served in order and told of their turn, a lock without `timeout` is kept alive
while its holder lives and not for ever after its death, a release whose reply was lost can be repeated, and `lock.lease`
has the fencing token and the loss signal. What must be known: Lockline's locks and redis-py's do not see each other, so
all programs that share a name move together; `sleep` has no meaning, because nobody polls; `acquire(token=...)` is refused;
`extend` and `reacquire` never shorten what was promised before; and a thread that asks again for what it holds, with no
limit to its wait, gets a LockError instead of waiting for itself.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace, TracebackType
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from . import aio, sync
from .core.claim import Line
from .core.shells import bind_to_nobody
from .errors import AcquireTimeout, BackendUnavailable, ConfigError, LeaseLost, NotHeld, WouldDeadlock

try:
    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import DataError, LockError, LockNotOwnedError
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "redis":
        raise
    # Still a ModuleNotFoundError, for whoever tries the import and goes without.
    raise ModuleNotFoundError(
        "lockline.drop_in stands in for redis-py's Lock and needs redis-py: pip install 'lockline[redis]'", name="redis"
    ) from None

# Now and not in the thread that takes the first lock: a child that is forked during an import can never finish it.
from .backends import redis as _backend  # noqa: F401

log = logging.getLogger("lockline")

L = TypeVar("L", sync.Lease, aio.Lease)

KEPT_FOR: Final = 10.0
"""The ttl of a lock without `timeout`: renewed while its holder lives, over that long after its death."""


class _Beside(NamedTuple):
    """What is open beside one client of redis.asyncio."""

    loop: asyncio.AbstractEventLoop
    client: aio.Client
    forgotten: weakref.finalize[[asyncio.AbstractEventLoop, aio.Client], Any]
    """What is done when nobody has that client any more, and nobody closed it."""


# Module state with a reason: redis-py makes a new lock object for each use and hands it nothing but its client.
_clients: weakref.WeakKeyDictionary[Any, sync.Client] = weakref.WeakKeyDictionary()
_loop_clients: weakref.WeakKeyDictionary[Any, _Beside] = weakref.WeakKeyDictionary()


def client_of(redis: Any) -> sync.Client:
    """The Lockline client that goes with a redis-py client, for as long as that lives."""
    client = _clients.get(redis)
    if client is not None:
        return client
    # No mutex: a fork while another thread had it would leave it shut in the child for ever. Of two that come first, both get
    # the same, and nobody has used the other.
    made = sync.connect(redis)
    forgotten = weakref.finalize(redis, made.close)
    client = _clients.setdefault(redis, made)
    if client is not made:
        forgotten.detach()
    return client


def loop_client_of(redis: Any) -> aio.Client:
    """The same for a client of redis.asyncio, on the loop that runs; it is closed together with that."""
    loop = asyncio.get_running_loop()
    known = _loop_clients.get(redis)
    if known is not None and known.loop is loop:
        return known.client
    if known is not None and known.loop.is_closed():
        known.forgotten.detach()
    client = aio.connect(redis)
    forgotten = weakref.finalize(redis, _close_later, loop, client)
    forgotten.atexit = False
    _loop_clients[redis] = _Beside(loop, client, forgotten)
    # There from an earlier use, or its owner's own: then the finalizer has to do.
    if "aclose" not in vars(redis):
        redis.aclose = _closing_both(redis, redis.aclose)
    return client


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
    known = _loop_clients.pop(redis, None)
    if known is None:
        return
    if known.loop is asyncio.get_running_loop():
        known.forgotten.detach()
        await known.client.close()
    else:
        known.forgotten()


@contextmanager
def _unreachable() -> Iterator[None]:
    try:
        yield
    except BackendUnavailable as problem:
        raise RedisConnectionError(str(problem)) from problem


Name = str | bytes | bytearray | memoryview | int | float
"""What redis-py takes for a key."""


def _text_of(name: Name) -> str:
    """The name as the text of the key that redis-py would make of it: 42, "42" and b"42" are one lock."""
    if isinstance(name, str):
        return name
    if isinstance(name, (int, float)) and not isinstance(name, bool):
        return repr(name)
    if not isinstance(name, (bytes, bytearray, memoryview)):
        kind = type(name).__name__
        raise DataError(f"Invalid input of type: {kind!r}. Convert to a bytes, string, int or float first.")
    try:
        return bytes(name).decode()
    except UnicodeDecodeError:
        raise ConfigError(f"the name of a lock is text; {bytes(name)!r} is no UTF-8") from None


class _EitherLock(Generic[L]):
    """What both flavours take, and every decision of theirs."""

    def __init__(
        self,
        redis: Any,
        name: Name,
        timeout: float | None = None,
        sleep: float = 0.1,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        thread_local: bool = True,
        raise_on_release_error: bool = True,
    ) -> None:
        self.redis = redis
        self.name = _text_of(name)
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.local: Any = threading.local() if self.thread_local else SimpleNamespace()

    @property
    def lease(self) -> L | None:
        """The lease of this thread (of anybody, with thread_local=False and on a loop), or None."""
        return getattr(self.local, "lease", None)

    def _terms(self) -> dict[str, Any]:
        return {"ttl": KEPT_FOR if self.timeout is None else self.timeout, "renew": self.timeout is None}

    def _patience(
        self, blocking: bool | None, blocking_timeout: float | None, token: object
    ) -> tuple[bool, float | None]:
        """Whether to wait, and how long at most."""
        if token is not None:
            raise ConfigError("acquire(token=...) is not possible: the token is the server's, see lock.lease.token")
        blocking = self.blocking if blocking is None else blocking
        return blocking, self.blocking_timeout if blocking_timeout is None else blocking_timeout

    def _keep(self, lease: L | None) -> bool:
        if lease is None:
            return False
        if isinstance(self.local, SimpleNamespace):
            # The object is the owner, whoever called: it stays held when that thread or task has ended, and the same
            # may wait for it again, because another may release it.
            bind_to_nobody(lease)
        self.local.lease = lease
        return True

    def _forget(self, lease: L) -> None:
        # Somebody else who shares this object may have taken it since, and that lease is not ours to drop.
        if self.lease is lease:
            self.local.lease = None

    @contextmanager
    def _releasing(self) -> Iterator[L]:
        """The lease that is given back in this block, with redis-py's errors."""
        lease, unlocked = self.lease, "Cannot release a lock that's not owned or is already unlocked."
        if lease is None:
            raise LockError(unlocked)
        try:
            with _unreachable():
                # After this error it is still ours as far as anybody knows: another release() may succeed.
                yield lease
        except LeaseLost as problem:
            self._forget(lease)
            raise LockNotOwnedError("Cannot release a lock that's no longer owned") from problem
        except NotHeld as problem:
            self._forget(lease)
            raise LockError(unlocked) from problem
        self._forget(lease)

    @contextmanager
    def _extending(self, additional_time: float, replace_ttl: bool) -> Iterator[tuple[L, float]]:
        """The lease that is extended in this block and how long it shall be good from now, with redis-py's errors."""
        lease = self.lease
        if lease is None:
            raise LockError("Cannot extend an unlocked lock")
        if self.timeout is None:
            raise LockError("Cannot extend a lock with no timeout")
        try:
            with _unreachable():
                yield lease, additional_time if replace_ttl else lease.remaining() + additional_time
        except (LeaseLost, NotHeld) as problem:
            raise LockNotOwnedError("Cannot extend a lock that's no longer owned") from problem

    def _whole_timeout(self) -> float:
        if self.timeout is None:
            raise LockError("Cannot reacquire a lock with no timeout")
        return self.timeout

    def _trusts(self) -> bool:
        return self.lease is not None and self.lease.valid

    def _is_in(self, line: Line) -> bool:
        lease = self.lease
        return lease is not None and any(lease.id == holder.id for holder in line.holders)

    def _enter(self, acquired: bool) -> None:
        if not acquired:
            raise LockError("Unable to acquire lock within the time specified")

    @contextmanager
    def _leaving(self, error: BaseException | None) -> Iterator[None]:
        """The release at the end of a block: if it fails, the block's own error is not hidden."""
        try:
            yield
        except (LockError, RedisConnectionError) as problem:
            if error is not None:
                error.add_note(f"and while leaving the lock: {problem}")
            elif self.raise_on_release_error or not isinstance(problem, LockError):
                raise
            else:
                log.warning("the lock %r was unlocked or no longer owned when its block ended", self.name)


class Lock(_EitherLock[sync.Lease]):
    """redis-py's `Lock`, on Lockline."""

    def acquire(
        self,
        sleep: float | None = None,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """True once the lock is held; False if it may not wait, or did not get it in time."""
        wait, timeout = self._patience(blocking, blocking_timeout, token)
        lock = client_of(self.redis).lock(self.name, **self._terms())
        with _unreachable(), suppress(AcquireTimeout):
            try:
                return self._keep(lock.acquire(timeout) if wait else lock.try_acquire())
            except WouldDeadlock as problem:
                if timeout is None:
                    raise LockError(str(problem)) from problem
            # This thread holds it and is here: all that can free it in time is the end of its ttl.
            time.sleep(timeout)
            return self._keep(lock.try_acquire())
        return False

    def release(self) -> None:
        """Give the lock back; LockNotOwnedError if it was lost before."""
        with self._releasing() as lease:
            lease.release()

    def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Make it good for that much longer (or, with replace_ttl, for at least that long from now: never shorter)."""
        with self._extending(additional_time, replace_ttl) as (lease, seconds):
            lease.extend(seconds)
        return True

    def reacquire(self) -> Literal[True]:
        """Make it good for at least its timeout again."""
        return self.extend(self._whole_timeout(), replace_ttl=True)

    def owned(self) -> bool:
        """Whether this lock holds it: by its own deadline, and then by the server's word."""
        with _unreachable():
            return self._trusts() and self._is_in(client_of(self.redis).inspect(self.name))

    def locked(self) -> bool:
        """Whether anybody holds it."""
        with _unreachable():
            return bool(client_of(self.redis).inspect(self.name).holders)

    def __enter__(self) -> Lock:
        self._enter(self.acquire())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._leaving(error):
            self.release()


class AsyncLock(_EitherLock[aio.Lease]):
    """redis.asyncio's `Lock`, on Lockline."""

    def __init__(self, redis: Any, name: Name, *args: Any, **options: Any) -> None:
        super().__init__(redis, name, *args, **options)
        # On one thread a task that holds must not be taken for another: the object is the owner, as in redis.asyncio.
        self.local = SimpleNamespace()

    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """True once the lock is held; False if it may not wait, or did not get it in time."""
        wait, timeout = self._patience(blocking, blocking_timeout, token)
        lock = loop_client_of(self.redis).lock(self.name, **self._terms())
        with _unreachable(), suppress(AcquireTimeout):
            return self._keep(await (lock.acquire(timeout) if wait else lock.try_acquire()))
        return False

    async def release(self) -> None:
        """Give the lock back; LockNotOwnedError if it was lost before."""
        with self._releasing() as lease:
            await lease.release()

    async def extend(self, additional_time: float, replace_ttl: bool = False) -> Literal[True]:
        """Make it good for that much longer (or, with replace_ttl, for at least that long from now: never shorter)."""
        with self._extending(additional_time, replace_ttl) as (lease, seconds):
            await lease.extend(seconds)
        return True

    async def reacquire(self) -> Literal[True]:
        """Make it good for at least its timeout again."""
        return await self.extend(self._whole_timeout(), replace_ttl=True)

    async def owned(self) -> bool:
        """Whether this lock holds it: by its own deadline, and then by the server's word."""
        with _unreachable():
            return self._trusts() and self._is_in(await loop_client_of(self.redis).inspect(self.name))

    async def locked(self) -> bool:
        """Whether anybody holds it."""
        with _unreachable():
            return bool((await loop_client_of(self.redis).inspect(self.name)).holders)

    async def __aenter__(self) -> AsyncLock:
        self._enter(await self.acquire())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._leaving(error):
            await self.release()
