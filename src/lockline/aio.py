"""The asyncio shell: every decision is the core's; this file only awaits it."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from .backends import open_backend
from .core import arguments
from .core.backend import Findings
from .core.claim import Line
from .core.engine import Engine
from .core.live import LiveClaim
from .core.shells import AnyClient, AnyLease, AnyLock, AnyLost, AnyRWLock, attach
from .errors import ConfigError, LocklineError
from .runtime.looping import LoopRuntime

F = TypeVar("F", bound=Callable[..., Any])


class Lost(AnyLost):
    """The loss of a lease, as an event."""

    __slots__ = ()

    async def wait(self, timeout: arguments.Seconds | None = None) -> bool:
        """Wait for the loss; False when it had not come by then, or the lease was released."""
        return await self._live.ended(self._until(timeout))


class Lease(AnyLease):
    """What the caller gets when its claim holds: token, deadline, loss signal, release."""

    __slots__ = ("_scope",)

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
        self._check_downgrade()
        await self._engine.stop_writing(self)

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


class Lock(AnyLock[Lease]):
    """A lock, one mode of a read-write lock, or a semaphore: a handle factory without state of its own."""

    def acquire(self, timeout: arguments.Seconds | None = None) -> _Acquiring:
        """The lease, when it is this claim's turn; AcquireTimeout if that did not come in time."""
        return _Acquiring(self._acquire(arguments.a_timeout(timeout)))

    async def _acquire(self, timeout: float | None) -> Lease:
        lease = await self._engine.acquire(self._terms, timeout, self._lease)
        assert lease is not None
        lease._given = True
        return lease

    async def try_acquire(self) -> Lease | None:
        """The lease, or None if the line has no room now."""
        lease = await self._engine.acquire(self._terms, None, self._lease, wait=False)
        if lease is not None:
            lease._given = True
        return lease

    def _lease(self, live: LiveClaim) -> Lease:
        return Lease(self._engine, live, self._terms.kind == "write")

    async def __aenter__(self) -> Lease:
        lease = await self._engine.acquire(self._terms, None, self._lease)
        assert lease is not None
        self._entered.append(lease)
        return await lease.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = self._last_entered()
        self._take_out(lease)
        await lease.__aexit__(kind, error, trace)


class RWLock(AnyRWLock[Lock]):
    """A fair read-write lock, re-entrant by thread or task."""

    _lock_class = Lock


class Client(AnyClient[Lock, RWLock]):
    """One connection to one backend, for any number of locks, threads or tasks."""

    _lock_class = Lock
    _rwlock_class = RWLock

    def _under(self, lock: Callable[..., Lock], timeout: Any, function: F, gives: str) -> Callable[..., Any]:
        if not gives:
            raise ConfigError("this client awaits; decorate plain functions with a client of lockline")

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            async with lock(*args, **kwargs).acquire(timeout):
                return await function(*args, **kwargs)

        return wrapper

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
