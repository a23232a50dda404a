"""The blocking shell: every decision is the core's; this file only runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from .backends import open_backend
from .core import arguments
from .core.backend import Findings
from .core.block import attach
from .core.claim import Line
from .core.engine import Engine
from .core.events import Listener
from .core.evicting import evict
from .core.hand_over import detach, handing_over
from .core.live import LiveClaim
from .core.shells import AnyClient, AnyLease, AnyLock, AnyLost, AnyRWLock, has_run
from .errors import ConfigError, LocklineError
from .kit.sync import Kit
from .observe.logging import stream_for
from .runtime.block import Exit, bind
from .runtime.blocking import BlockingRuntime, refuse_green_threads, run

F = TypeVar("F", bound=Callable[..., Any])


class Lost(AnyLost):
    """The loss of a lease, as an event."""

    __slots__ = ()

    def wait(self, timeout: arguments.Seconds | None = None) -> bool:
        """Wait for the loss; False when it had not come by then, or the lease was released."""
        return run(self._live.ended(self._until(timeout)))


class Lease(AnyLease):
    """What the caller gets when its claim holds: token, deadline, loss signal, release."""

    __slots__ = ()

    def __init__(self, engine: Engine, live: LiveClaim, writes: bool) -> None:
        AnyLease.__init__(self, live, writes)
        self._engine = engine

    @property
    def lost(self) -> Lost:
        """An event that is set when the lease is lost. Reading it does no I/O."""
        return Lost(self._live)

    def extend(self, ttl: arguments.Seconds) -> None:
        """Make the lease good for at least that long from now, once. Never shortens it."""
        self.check()
        run(self._engine.extend(self._live, ttl))

    def validate(self) -> None:
        """Ask the store whether the lease still holds, and renew it: raises LeaseLost if not.

        When this returns, no higher token had been granted before it was called; on redlock that is proved by a majority
        without any clock. For resources that cannot keep a token themselves.
        """
        self.check()
        run(self._engine.extend(self._live, self._live.claim.ttl))

    def downgrade(self) -> None:
        """Turn a write lease into a read lease: no other writer can come between."""
        self._check_downgrade()
        run(self._engine.stop_writing(self))

    def detach(self, ttl: arguments.Seconds) -> str:
        """A ticket with which `client.attach` goes on elsewhere, under a higher token: the lease ends here, and the lock stays taken.

        Nobody who comes with it within `ttl`: then the lock is free. The ticket is a text for a queue, a URL or a header; it works once,
        and whoever has it has the lock.
        """
        seconds = arguments.a_ttl(ttl)
        handing_over(self._engine.backend)
        return run(self._engine.ask(lambda until: detach(self._engine, self, seconds, until)))

    def release(self) -> None:
        """Give the lock back. LeaseLost if it was lost before, NotHeld if it was released before."""
        run(self._engine.release(self))

    def __enter__(self) -> Lease:
        bind(self, self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(kind, error, trace)

    def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live.detached:
            return
        try:
            run(self._engine.release(self))
        except LocklineError as problem:
            if error is None:
                raise
            attach(error, problem)
        except BaseException:
            # Whatever strikes, the block is left.
            run(self._engine.give_up(self))
            raise


class Lock(AnyLock[Lease]):
    """A lock, one mode of a read-write lock, or a semaphore: a handle factory without state of its own."""

    _given = False

    def acquire(self, timeout: arguments.Seconds | None = None) -> Lease:
        """The lease, when it is this claim's turn; AcquireTimeout if that did not come in time."""
        lease = None
        try:
            seconds = self._terms.timeout if timeout is None else arguments.a_timeout(timeout)
            lease = run(self._engine.acquire(self._terms, seconds, self._lease))
            assert lease is not None
            lease._given = True
            return lease
        except BaseException:
            run(self._engine.give_up(lease))
            raise

    def try_acquire(self) -> Lease | None:
        """The lease, or None if the line has no room now."""
        lease = None
        try:
            lease = run(self._engine.acquire(self._terms, None, self._lease, wait=False))
            if lease is not None:
                lease._given = True
            return lease
        except BaseException:
            run(self._engine.give_up(lease))
            raise

    def locked(self) -> bool:
        """Whether whoever asked for it now would have to wait: it is held, or has no room."""
        return run(self._engine.ask(self._is_full))

    def _lease(self, live: LiveClaim) -> Lease:
        return Lease(self._engine, live, self._terms.kind == "write")

    def __enter__(self) -> Lease:
        lease = None
        try:
            lease = run(self._engine.acquire(self._terms, self._terms.timeout, self._lease))
            assert lease is not None
            if not bind(self, lease):
                self._entered.append(lease)
            return lease
        except BaseException:
            run(self._engine.give_up(lease))
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease = None
        try:
            lease = self._last_entered()
            self._take_out(lease)
            lease._leave(kind, error, trace)
        except LocklineError:
            raise
        except BaseException:
            if lease is None:
                lease = self._last_entered()
            self._take_out(lease)
            run(self._engine.give_up(lease))
            raise


# Each block that a `with` begins has an end of its own, so that even one that was cut off before its end could run is known.
Lease.__exit__ = Exit(Lease.__exit__)  # type: ignore[method-assign, assignment]
Lock.__exit__ = Exit(Lock.__exit__)  # type: ignore[method-assign, assignment]


class RWLock(AnyRWLock[Lock]):
    """A fair read-write lock, re-entrant by thread or task."""

    _lock_class = Lock


class Client(Kit, AnyClient[Lock, RWLock]):
    """One connection to one backend, for any number of locks, threads or tasks."""

    _lock_class = Lock
    _rwlock_class = RWLock

    def _under(self, lock: Callable[..., Lock], timeout: Any, function: F, gives: str) -> Callable[..., Any]:
        if gives:
            raise ConfigError("this client blocks; decorate coroutines with a client of lockline.aio")

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with lock(*args, **kwargs).acquire(timeout):
                return has_run(function(*args, **kwargs), "@locked")

        return wrapper

    def inspect(self, name: str) -> Line:
        """The whole line: holders and waiters, with who, since when, token."""
        name = arguments.a_name(name)
        return run(self._engine.ask(lambda until: self._engine.backend.look(name, until)))

    def list(self, prefix: str = "") -> list[str]:
        """The names that are held or waited for."""
        prefix = arguments.a_prefix(prefix)
        return run(self._engine.ask(lambda until: self._engine.backend.list(prefix, until)))

    def evict(self, name: str, token: int | None = None) -> int:
        """The operator's force release: the victims see LeaseLost, the next token is higher. How many there were.

        With a token only the holder that has it: nobody, if another has taken over meanwhile.
        """
        name, which = arguments.a_name(name), arguments.a_token(token)
        return run(evict(self._engine, name, which))

    def examine(self) -> Findings:
        """What is good and what is dangerous about this backend as it is set up."""
        return run(self._engine.ask(self._engine.backend.examine))

    def close(self) -> None:
        """Release what is held, end every wait, let go of connections. Again is harmless."""
        run(self._engine.close())

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    target: Any = None,
    *,
    owner: str | None = None,
    on_event: Listener | Sequence[Listener] | None = None,
    **options: Any,
) -> Client:
    """A client for a URL, or for a client object of a backend's own library. No I/O before the first use.

    Without a target: `LOCKLINE_URL`, or what ~/.config/lockline.toml or /etc/lockline.toml names, or else the embedded default,
    this machine; `LOCKLINE_REQUIRE=server` refuses the last. A thread renews what is held; in asyncio the loop does, unless
    `keeper="thread"` says otherwise, for programs whose loop may be blocked for longer than a ttl. `on_event` is called with
    what happens to each claim (`lockline.observe` has the events), in a thread of its own; several may be given.
    """
    refuse_green_threads()
    runtime = BlockingRuntime()
    if owner is not None:
        arguments.an_owner(owner)
    listeners = arguments.listeners(on_event)
    backend = open_backend(target, runtime, options)
    return Client(Engine(backend, runtime, owner, stream_for(backend, runtime, listeners)))
