"""Lockline behind redis-py's `Lock` interface: code that uses that lock moves over by one line.

    from lockline.drop_in import Lock                # AsyncLock for redis.asyncio

    with redis_client.lock("orders/42", timeout=10, lock_class=Lock) as lock:
        write(order, token=lock.lease.token)         # and a fencing token comes with it

What is better than before: waiters are served in order and told of their turn, a lock without `timeout` is kept alive
while its holder lives and not for ever after its death, a release whose reply was lost can be repeated, and `lock.lease`
has the fencing token and the loss signal. What must be known: Lockline's locks and redis-py's do not see each other, so
all programs that share a name move together, or with `bridge=True` one after the other; `sleep` has no meaning, because nobody polls; `acquire(token=...)` is refused;
`extend` and `reacquire` never shorten what was promised before; a lock with `timeout` that was not released stays until that is over, also after
the end of its process, and `lock.local.token` of another process releases it; and a thread that asks again for what it holds, with no
limit to its wait, gets a LockError instead of waiting for itself.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace, TracebackType
from typing import Any, Final, Generic, Literal, TypeVar

from .. import aio, sync
from ..core.arguments import a_flag
from ..core.asking import asked
from ..core.claim import Claim, Line
from ..core.engine import Engine
from ..core.shells import bind_to_nobody, engine_of, leave_to_its_ttl
from ..errors import AcquireTimeout, BackendUnavailable, ConfigError, LeaseLost, NotHeld, WouldDeadlock

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

from ..backends.redis.bridge import Bridge
from ..runtime.blocking import run

# Now and not in the thread that takes the first lock: a child that is forked during an import can never finish it.
from .clients import _clients, aclose, client_of, loop_client_of

log = logging.getLogger("lockline")

L = TypeVar("L", sync.Lease, aio.Lease)

KEPT_FOR: Final = 10.0
"""The ttl of a lock without `timeout`: renewed while its holder lives, over that long after its death."""


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


class _OfThread(threading.local):
    """What one thread has of a lock."""

    token: bytes | None = None
    """As in redis-py: bytes that are this hold's own, None while there is none. The number for a fence is `lock.lease.token`."""
    lease: Any = None
    pid = 0
    """The process that took it: in a forked child the lease is not valid, and the token is."""


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
        *,
        bridge: bool = False,
    ) -> None:
        self.redis = redis
        self.name = _text_of(name)
        self.timeout = timeout
        self.sleep = sleep
        self.blocking = blocking
        self.blocking_timeout = blocking_timeout
        self.thread_local = bool(thread_local)
        self.raise_on_release_error = raise_on_release_error
        self.bridge = a_flag(bridge, "bridge")
        """Whether redis-py's own locks of that name are excluded too, and exclude this one."""
        self.local: Any = _OfThread() if self.thread_local else SimpleNamespace(token=None, lease=None, pid=0)

    @property
    def lease(self) -> L | None:
        """The lease of this thread (of anybody, with thread_local=False and on a loop), or None."""
        lease: L | None = self.local.lease
        return lease

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
        if self.timeout is not None:
            # As the key of redis-py: code that never releases relies on it after the process has ended.
            leave_to_its_ttl(lease)
        self.local.lease, self.local.token, self.local.pid = lease, lease.id.encode(), os.getpid()
        return True

    def _forget(self, lease: L) -> None:
        # Somebody else who shares this object may have taken it since, and that lease is not ours to drop.
        if self.lease is lease:
            self.local.lease = self.local.token = None

    def _foreign_token(self) -> str | None:
        """The id of a claim that another program or the parent took, where `local.token` names one; None if the lease is ours."""
        token, lease = self.local.token, self.lease
        if token is None:
            return None
        text = str(token) if not isinstance(token, bytes) else token.decode(errors="replace")
        ours = lease is not None and lease.id == text and self.local.pid == os.getpid()
        return None if ours else text

    async def _release_by_token(self, client: Any, token: str) -> None:
        engine: Engine = engine_of(client)
        if isinstance(engine.backend, Bridge):
            engine.backend.adopt(token)
        claim = Claim(self.name, token, engine.owner, "lock", 1, 1, KEPT_FOR, 0.0, "")
        with _unreachable():
            there = await engine.ask(lambda until: engine.backend.leave(claim, until))
        self.local.lease = self.local.token = None
        if not there:
            raise LockNotOwnedError("Cannot release a lock that's no longer owned")

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

    def _is_key(self, value: str | bytes | None) -> bool:
        """Whether redis-py's key of that name is this hold's."""
        return bool((value.encode() if isinstance(value, str) else value) == self.local.token)

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
        lock = client_of(self.redis, bridge=self.bridge).lock(self.name, **self._terms())
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
        token = self._foreign_token()
        if token is not None:
            run(self._release_by_token(client_of(self.redis, bridge=self.bridge), token))
            return
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
            if not self._trusts() or (self.bridge and not self._is_key(self.redis.get(self.name))):
                return False
            return self._is_in(client_of(self.redis, bridge=self.bridge).inspect(self.name))

    def locked(self) -> bool:
        """Whether anybody holds it."""
        with _unreachable():
            if self.bridge and self.redis.exists(self.name):
                return True
            return bool(client_of(self.redis, bridge=self.bridge).inspect(self.name).holders)

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
        self.local = SimpleNamespace(token=None, lease=None, pid=0)

    @asked
    async def acquire(
        self,
        blocking: bool | None = None,
        blocking_timeout: float | None = None,
        token: str | bytes | None = None,
    ) -> bool:
        """True once the lock is held; False if it may not wait, or did not get it in time."""
        wait, timeout = self._patience(blocking, blocking_timeout, token)
        lock = loop_client_of(self.redis, bridge=self.bridge).lock(self.name, **self._terms())
        with _unreachable(), suppress(AcquireTimeout):
            return self._keep(await (lock.acquire(timeout) if wait else lock.try_acquire()))
        return False

    async def release(self) -> None:
        """Give the lock back; LockNotOwnedError if it was lost before."""
        token = self._foreign_token()
        if token is not None:
            await self._release_by_token(loop_client_of(self.redis, bridge=self.bridge), token)
            return
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

    @asked
    async def owned(self) -> bool:
        """Whether this lock holds it: by its own deadline, and then by the server's word."""
        with _unreachable():
            if not self._trusts() or (self.bridge and not self._is_key(await self.redis.get(self.name))):
                return False
            return self._is_in(await loop_client_of(self.redis, bridge=self.bridge).inspect(self.name))

    @asked
    async def locked(self) -> bool:
        """Whether anybody holds it."""
        with _unreachable():
            if self.bridge and await self.redis.exists(self.name):
                return True
            return bool((await loop_client_of(self.redis, bridge=self.bridge).inspect(self.name)).holders)

    async def __aenter__(self) -> AsyncLock:
        self._enter(await self.acquire())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._leaving(error):
            await self.release()


__all__ = ["AsyncLock", "Lock", "_clients", "aclose", "client_of", "loop_client_of"]
