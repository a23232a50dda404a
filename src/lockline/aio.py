"""The asyncio shell: every decision is the core's; this file only awaits it."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

from .backends import open_backend
from .core import arguments
from .core.asking import Asking, asked
from .core.backend import Findings
from .core.block import leave_block
from .core.claim import Line
from .core.engine import PATIENCE, Engine
from .core.events import Listener
from .core.evicting import evict
from .core.hand_over import detach, handing_over
from .core.handle import H, Handle, left
from .core.live import LiveClaim
from .core.shells import AnyClient, AnyLease, AnyLock, AnyLost, AnyRWLock, has_run
from .core.terms import Terms
from .errors import ConfigError, NotHeld
from .kit.aio import Kit
from .observe.logging import stream_for
from .runtime.apart import ApartRuntime
from .runtime.looping import LoopRuntime
from .runtime.scope import Scope

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Lost(AnyLost):
    """The loss of a lease, as an event."""

    __slots__ = ()

    @asked
    async def wait(self, timeout: arguments.Seconds | None = None) -> bool:
        """Wait for the loss; False when it had not come by then, or the lease was released."""
        return await self._live.ended(self._until(timeout))


class Lease(AnyLease):
    """What the caller gets when its claim holds: token, deadline, loss signal, release."""

    __slots__ = ("_scope",)

    def __init__(self, engine: Engine, live: LiveClaim, writes: bool) -> None:
        super().__init__(live, writes)
        self._engine = engine
        self._scope: Scope | None = None

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

    async def detach(self, ttl: arguments.Seconds) -> str:
        """A ticket with which `client.attach` goes on elsewhere, under a higher token: the lease ends here, and the lock stays taken.

        Nobody who comes with it within `ttl`: then the lock is free. The ticket is a text for a queue, a URL or a header; it works once,
        and whoever has it has the lock.
        """
        seconds = arguments.a_ttl(ttl)
        handing_over(self._engine.backend)
        return await self._engine.ask(lambda until: detach(self._engine, self, seconds, until))

    async def release(self) -> None:
        """Give the lock back. LeaseLost if it was lost before, NotHeld if it was released before."""
        await self._engine.release(self)

    async def __aenter__(self) -> Lease:
        self._scope = Scope("the lease was lost")
        self._live.listen(self._scope.cancel)
        return self

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, None]:
        try:
            leaving = self._leave(error)
            self._block = weakref.ref(leaving)
        except BaseException:  # an exception struck here
            self._block = left
            raise
        return leaving

    async def _leave(self, error: BaseException | None) -> None:
        scope, self._scope = self._scope, None
        await leave_block(scope, error, self._end)

    async def _end(self) -> None:
        if not self._live.detached:
            await self._engine.release(self)


class _Acquiring(Asking[Lease]):
    """An acquire: `await` it for the lease, or enter it with `async with`, which awaits it first."""

    __slots__ = ("_lease",)

    async def __aenter__(self) -> Lease:
        self._lease = await self._call
        return await self._lease.__aenter__()

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, None]:
        try:
            return self._lease.__aexit__(kind, error, trace)
        except BaseException:  # an exception struck here
            self._lease._block = left
            raise


class Lock(AnyLock[Lease]):
    """A lock, one mode of a read-write lock, or a semaphore: a handle factory without state of its own."""

    def acquire(self, timeout: arguments.Seconds | None = None) -> _Acquiring:
        """The lease, when it is this claim's turn; AcquireTimeout if that did not come in time."""
        return _Acquiring(self._acquire(self._terms.timeout if timeout is None else arguments.a_timeout(timeout)))

    async def _acquire(self, timeout: float | None) -> Lease:
        lease = await self._engine.acquire(self._terms, timeout, self._lease)
        assert lease is not None
        lease._given = True
        return lease

    @asked
    async def try_acquire(self) -> Lease | None:
        """The lease, or None if the line has no room now."""
        lease = await self._engine.acquire(self._terms, None, self._lease, wait=False)
        if lease is not None:
            lease._given = True
        return lease

    @asked
    async def locked(self) -> bool:
        """Whether whoever asked for it now would have to wait: it is held, or has no room."""
        return await self._engine.ask(self._is_full)

    def _lease(self, live: LiveClaim) -> Lease:
        return Lease(self._engine, live, self._terms.kind == "write")

    async def __aenter__(self) -> Lease:
        lease = await self._engine.acquire(self._terms, self._terms.timeout, self._lease)
        assert lease is not None
        self._entered.append(lease)
        return await lease.__aenter__()

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, None]:
        lease: Lease | None = None
        try:
            lease = self._last_entered()
            self._take_out(lease)
            return lease.__aexit__(kind, error, trace)
        except NotHeld:
            raise
        except BaseException:  # an exception struck here
            (lease or self._last_entered())._block = left
            raise


class RWLock(AnyRWLock[Lock]):
    """A fair read-write lock, re-entrant by thread or task."""

    _lock_class = Lock


class Client(Kit, AnyClient[Lock, RWLock]):
    """One connection to one backend, for any number of locks, threads or tasks."""

    _lock_class = Lock
    _rwlock_class = RWLock

    def _under(self, lock: Callable[..., Lock], timeout: Any, function: F, gives: str) -> Callable[..., Any]:
        if not gives:
            raise ConfigError("this client awaits; decorate plain functions with a client of lockline")

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            async with lock(*args, **kwargs).acquire(timeout):
                return has_run(await function(*args, **kwargs), "@locked")

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
        return await evict(self._engine, name, which)

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


class _LoopEngine(Engine):
    """The same decisions on the caller's own loop. What another one opened cannot be awaited here, so that is refused before anything is asked."""

    def release(self, handle: Handle) -> Coroutine[Any, Any, None]:
        self.runtime.me()
        return Engine.release(self, handle)

    async def extend(self, live: LiveClaim, ttl: object) -> None:
        self.runtime.me()
        await Engine.extend(self, live, ttl)

    async def stop_writing(self, handle: Handle) -> None:
        self.runtime.me()
        await Engine.stop_writing(self, handle)

    async def ask(self, question: Callable[[float], Awaitable[T]], patience: float = PATIENCE) -> T:
        self.runtime.me()
        return await Engine.ask(self, question, patience)

    async def close(self) -> None:
        if not self.closed:
            self.runtime.me()
        await Engine.close(self)


class _ApartEngine(Engine):
    """The same decisions on a loop apart, where nothing that the caller does holds up a renewal."""

    runtime: ApartRuntime

    def acquire(
        self, terms: Terms, timeout: float | None, make: Callable[[LiveClaim], H], wait: bool = True
    ) -> Coroutine[Any, Any, H | None]:
        return self.runtime.run(lambda: Engine.acquire(self, terms, timeout, make, wait))

    def release(self, handle: Handle) -> Coroutine[Any, Any, None]:
        return self.runtime.run(lambda: Engine.release(self, handle))

    async def give_up(self, handle: Handle | None) -> None:
        await self.runtime.run(lambda: Engine.give_up(self, handle))

    async def extend(self, live: LiveClaim, ttl: object) -> None:
        await self.runtime.run(lambda: Engine.extend(self, live, ttl))

    async def stop_writing(self, handle: Handle) -> None:
        await self.runtime.run(lambda: Engine.stop_writing(self, handle))

    async def ask(self, question: Callable[[float], Awaitable[T]], patience: float = PATIENCE) -> T:
        return await self.runtime.run(lambda: Engine.ask(self, question, patience))

    async def close(self) -> None:
        await self.runtime.run(lambda: Engine.close(self))
        self.runtime.stop()


def connect(
    target: Any = None,
    *,
    owner: str | None = None,
    on_event: Listener | Sequence[Listener] | None = None,
    keeper: Literal["loop", "thread"] = "loop",
    **options: Any,
) -> Client:
    """A client for a URL, or for a client object of a backend's own library. No I/O before the first use.

    Without a target: `LOCKLINE_URL`, or what ~/.config/lockline.toml or /etc/lockline.toml names, or else the embedded default,
    this machine; `LOCKLINE_REQUIRE=server` refuses the last. A thread renews what is held; in asyncio the loop does, unless
    `keeper="thread"` says otherwise, for programs whose loop may be blocked for longer than a ttl. `on_event` is called with
    what happens to each claim (`lockline.observe` has the events), in a thread of its own; several may be given.
    """
    if keeper not in ("loop", "thread"):
        raise ConfigError(f"keeper is 'loop' or 'thread', not {keeper!r}")
    if owner is not None:
        arguments.an_owner(owner)
    listeners = arguments.listeners(on_event)
    if keeper == "thread":
        apart = ApartRuntime()
        backend = open_backend(target, apart, options)
        engine = _ApartEngine(backend, apart, owner, stream_for(backend, apart, listeners))
        weakref.finalize(engine, apart.stop).atexit = False
        return Client(engine)
    runtime = LoopRuntime()
    backend = open_backend(target, runtime, options)
    return Client(_LoopEngine(backend, runtime, owner, stream_for(backend, runtime, listeners)))
