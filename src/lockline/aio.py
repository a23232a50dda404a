"""The asyncio shell: every decision is the core's; this file only awaits it."""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Callable, Coroutine, Generator, Mapping
from types import TracebackType
from typing import Any, ClassVar, NoReturn, TypeVar

from .backends import open_backend
from .core import arguments
from .core.ask import Ask, ask_for
from .core.backend import Findings
from .core.claim import WHOLE, Line
from .core.engine import Engine
from .core.live import (
    Handle,
    LiveClaim,
    attach,
    last_entered,
    released_as_a_lock,
    runs_later,
    take_out,
    unlocked_generator,
)
from .errors import ConfigError, LocklineError
from .guarantees import Guarantees
from .runtime.looping import LoopRuntime

F = TypeVar("F", bound=Callable[..., Any])


class Lost:
    """The loss of a lease, as an event."""

    __slots__ = ("_live",)

    def __init__(self, live: LiveClaim) -> None:
        self._live = live

    def is_set(self) -> bool:
        """Whether the lease is lost. No I/O."""
        self._live.remaining()
        return self._live.lost is not None

    async def wait(self, timeout: arguments.Seconds | None = None) -> bool:
        """Wait for the loss; False when it had not come by then, or the lease was released."""
        seconds = arguments.a_timeout(timeout)
        until = None if seconds is None else self._live.runtime.now() + seconds
        return await self._live.ended(until)


class Lease(Handle):
    """What the caller gets when its claim holds: token, deadline, loss signal, release."""

    __slots__ = ("_engine", "_scope")

    def __init__(self, engine: Engine, live: LiveClaim, writes: bool) -> None:
        super().__init__(live, writes)
        self._engine = engine
        self._scope: _Scope | None = None

    @property
    def lost(self) -> Lost:
        """An event that is set when the lease is lost. Reading it does no I/O."""
        return Lost(self._live)

    async def extend(self, ttl: arguments.Seconds) -> None:
        """Make the lease good for at least that long from now, once. Never shortens it."""
        self.check()
        await self._engine.extend(self._live, ttl)

    async def validate(self) -> None:
        """Ask the store whether the lease still holds, and renew it: raises LeaseLost if not.

        When this returns, no higher token had been granted before it was called; on redlock that is proved by a majority
        without any clock. For resources that cannot keep a token themselves.
        """
        self.check()
        await self._engine.extend(self._live, self._live.claim.ttl)

    async def downgrade(self) -> None:
        """Turn a write lease into a read lease: no other writer can come between."""
        self.check()
        if self.kind not in ("write", "read"):
            raise ConfigError(f"only a write lease can be downgraded, not a {self.kind}")
        await self._engine.stop_writing(self)

    def guard(self) -> Any:
        """What makes your own transaction on the same store fail once the lease is gone: ZooKeeper and etcd. No I/O."""
        self.check()
        return self._engine.guard(self._live)

    def adopt(self) -> None:
        """Bind the lease to the thread or task that calls this, instead of the one that took it. No I/O.

        Renewal stops when the thread or task that took the lease has ended, and re-entrance is counted for it;
        call this where the lease was handed over to.
        """
        self._engine.adopt(self._live)

    async def release(self) -> None:
        """Give the lock back. LeaseLost if it was lost before, NotHeld if it was released before."""
        await self._engine.release(self)

    async def __aenter__(self) -> Lease:
        self._scope = _Scope()
        self._live.listen(self._scope.cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope, self._scope = self._scope, None
        try:
            cancelled_here = scope is not None and await scope.leave(error)
        except BaseException:
            # A cancel by others, taken on the way out: the lock is given back first.
            try:
                await self.release()
            except LocklineError:
                pass
            raise
        try:
            await self.release()
        except LocklineError as problem:
            if error is None:
                raise
            if cancelled_here:
                raise problem from error
            attach(error, problem)
        finally:
            if scope is not None:
                scope.left()


class _Scope:
    """Cancels the body of an `async with` when its lease is lost, and tells that from a cancel by others."""

    # Of the process, because the task is: blocks of several clients may lie in one another. How many of the cancels that
    # a task was asked for came from blocks that it has not left yet.
    _cancels: ClassVar[weakref.WeakKeyDictionary[asyncio.Task[Any], int]] = weakref.WeakKeyDictionary()

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = self._by_others()
        self._inside = True
        self._cancelled = False

    def _by_others(self) -> int:
        return self._task.cancelling() - self._cancels.get(self._task, 0)

    def cancel(self) -> None:
        if self._inside and not self._task.done():
            self._cancelled = True
            self._cancels[self._task] = self._cancels.get(self._task, 0) + 1
            self._task.cancel("the lease was lost")

    async def leave(self, error: BaseException | None) -> bool:
        """Whether the error that comes out of the body is our own cancel and nobody else's."""
        self._inside = False
        if not self._cancelled:
            return False
        self._cancels[self._task] -= 1
        self._task.uncancel()
        if self._task is not asyncio.current_task():
            return False
        by_others = self._by_others() > self._before
        if not isinstance(error, asyncio.CancelledError):
            # The body ended before the cancel reached it: take it here, so that it does not hit the release.
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if by_others:
                    raise
            return False
        return not by_others

    def left(self) -> None:
        """The release is done: a block around this one, whose cancel we took with ours, has its own still to come."""
        if self._cancelled and self._cancels.get(self._task) and self._task is asyncio.current_task():
            self._task.cancel("the lease was lost")
            self._task.uncancel()


class _Acquiring(Coroutine[Any, Any, Lease]):
    """An acquire: `await` it for the lease, or enter it with `async with`, which awaits it first."""

    __slots__ = ("_call", "_lease")

    def __init__(self, call: Coroutine[Any, Any, Lease]) -> None:
        self._call = call

    def __await__(self) -> Generator[Any, Any, Lease]:
        return self._call.__await__()

    # A task, which takes coroutines alone, takes this too.
    def send(self, value: Any, /) -> Any:
        return self._call.send(value)

    def throw(self, *error: Any) -> Any:
        return self._call.throw(*error)

    def close(self) -> None:
        self._call.close()

    async def __aenter__(self) -> Lease:
        self._lease = await self._call
        return await self._lease.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._lease.__aexit__(kind, error, trace)


class Lock:
    """A lock, one mode of a read-write lock, or a semaphore: a handle factory without state of its own."""

    def __init__(self, engine: Engine, ask: Ask) -> None:
        self._engine = engine
        self._ask = ask
        self._entered: list[Lease] = []

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._ask.name

    def acquire(self, timeout: arguments.Seconds | None = None) -> _Acquiring:
        """The lease, when it is this claim's turn; AcquireTimeout if that did not come in time."""
        return _Acquiring(self._acquire(arguments.a_timeout(timeout)))

    async def _acquire(self, timeout: float | None) -> Lease:
        lease = await self._engine.acquire(self._ask, timeout, self._lease)
        assert lease is not None
        lease._given = True
        return lease

    async def try_acquire(self) -> Lease | None:
        """The lease, or None if the line has no room now."""
        lease = await self._engine.acquire(self._ask, None, self._lease, wait=False)
        if lease is not None:
            lease._given = True
        return lease

    def _lease(self, live: LiveClaim) -> Lease:
        return Lease(self._engine, live, self._ask.kind == "write")

    def release(self) -> NoReturn:
        """Explains: a lock holds nothing, the lease that `acquire` returned does."""
        raise released_as_a_lock(self.name)

    async def __aenter__(self) -> Lease:
        lease = await self._engine.acquire(self._ask, None, self._lease)
        assert lease is not None
        self._entered.append(lease)
        return await lease.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = last_entered(self._entered, self._engine.runtime.me(), self.name)
        take_out(self._entered, lease)
        await lease.__aexit__(kind, error, trace)


class RWLock:
    """A fair read-write lock, re-entrant by thread or task."""

    def __init__(self, engine: Engine, ask: Ask) -> None:
        self._engine = engine
        self._ask = ask

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._ask.name

    def read(self) -> Lock:
        """The shared side: any number of readers, and no writer that came before them."""
        return Lock(self._engine, self._ask._replace(kind="read", weight=1))

    def write(self) -> Lock:
        """The exclusive side. While it is held, the same thread or task may also read."""
        return Lock(self._engine, self._ask._replace(kind="write", weight=WHOLE))


class Client:
    """One connection to one backend, for any number of locks, threads or tasks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def guarantees(self) -> Guarantees:
        """What this backend promises."""
        return self._engine.backend.guarantees

    @property
    def url(self) -> str:
        """Where the backend is, without secrets."""
        return self._engine.backend.url

    @property
    def owner(self) -> str:
        """Who this client is, as others see it."""
        return self._engine.owner

    def lock(
        self,
        name: str,
        ttl: arguments.Seconds = 10.0,
        *,
        renew: bool = True,
        max_hold: arguments.Seconds | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Lock:
        """One at a time."""
        return Lock(self._engine, ask_for("lock", 1, name, ttl, renew, max_hold, meta))

    def rlock(
        self,
        name: str,
        ttl: arguments.Seconds = 10.0,
        *,
        renew: bool = True,
        max_hold: arguments.Seconds | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Lock:
        """One at a time; the thread or task that holds it may take it again, under the same token."""
        return Lock(self._engine, ask_for("rlock", 1, name, ttl, renew, max_hold, meta))

    def rwlock(
        self,
        name: str,
        ttl: arguments.Seconds = 10.0,
        *,
        renew: bool = True,
        max_hold: arguments.Seconds | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> RWLock:
        """Many readers or one writer, in order of arrival."""
        return RWLock(self._engine, ask_for("read", WHOLE, name, ttl, renew, max_hold, meta))

    def semaphore(
        self,
        name: str,
        limit: int,
        ttl: arguments.Seconds = 10.0,
        *,
        renew: bool = True,
        max_hold: arguments.Seconds | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Lock:
        """At most `limit` at a time, each with its own lease and token."""
        return Lock(self._engine, ask_for("permit", arguments.a_limit(limit), name, ttl, renew, max_hold, meta))

    def locked(
        self,
        name: str | Callable[..., str],
        ttl: arguments.Seconds = 10.0,
        *,
        timeout: arguments.Seconds | None = None,
        renew: bool = True,
        max_hold: arguments.Seconds | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]:
        """Decorate a function or coroutine so that each call runs under the lock; a callable makes the name from the arguments."""
        arguments.a_timeout(timeout)
        if not callable(name):
            self.lock(name, ttl, renew=renew, max_hold=max_hold, meta=meta)

        def decorate(function: F) -> F:
            says = runs_later(function)
            if says is not None and "generator" in says:
                raise unlocked_generator(says)
            if says is None:
                raise ConfigError("this client awaits; decorate plain functions with a client of lockline")

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                key = name(*args, **kwargs) if callable(name) else name
                lock = self.lock(key, ttl, renew=renew, max_hold=max_hold, meta=meta)
                async with lock.acquire(timeout):
                    return await function(*args, **kwargs)

            return wrapper  # type: ignore[return-value]

        return decorate

    async def inspect(self, name: str) -> Line:
        """The whole line: holders and waiters, with who, since when, token."""
        name = arguments.a_name(name)
        return await self._engine.ask(lambda until: self._engine.backend.look(name, until))

    async def list(self, prefix: str = "") -> list[str]:
        """The names that are held or waited for."""
        prefix = arguments.a_prefix(prefix)
        return await self._engine.ask(lambda until: self._engine.backend.list(prefix, until))

    async def evict(self, name: str, token: int | None = None) -> int:
        """The operator's force release: the victims see LeaseLost, the next token is higher. How many there were.

        With a token only the holder that has it: nobody, if another has taken over meanwhile.
        """
        name, which = arguments.a_name(name), arguments.a_token(token)
        return await self._engine.ask(lambda until: self._engine.backend.evict(name, until, which))

    async def examine(self) -> Findings:
        """What is good and what is dangerous about this backend as it is set up."""
        return await self._engine.ask(self._engine.backend.examine)

    async def close(self) -> None:
        """Release what is held, end every wait, let go of connections. Again is harmless."""
        await self._engine.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def connect(target: Any = None, *, owner: str | None = None, **options: Any) -> Client:
    """A client for a URL, or for a client object of a backend's own library. No I/O before the first use.

    Without a target: `LOCKLINE_URL`, or what ~/.config/lockline.toml or /etc/lockline.toml names, or else the embedded default,
    this machine; `LOCKLINE_REQUIRE=server` refuses the last.
    """
    runtime = LoopRuntime()
    if owner is not None:
        arguments.an_owner(owner)
    return Client(Engine(open_backend(target, runtime, options), runtime, owner))
