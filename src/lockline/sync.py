"""The blocking shell: every decision is the core's; this file only runs it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NoReturn, TypeVar

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
from .runtime.block import Exit, bind
from .runtime.blocking import BlockingRuntime, refuse_green_threads, run

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

    def wait(self, timeout: arguments.Seconds | None = None) -> bool:
        """Wait for the loss; False when it had not come by then, or the lease was released."""
        seconds = arguments.a_timeout(timeout)
        until = None if seconds is None else self._live.runtime.now() + seconds
        return run(self._live.ended(until))


class Lease(Handle):
    """What the caller gets when its claim holds: token, deadline, loss signal, release."""

    __slots__ = ("_engine",)

    def __init__(self, engine: Engine, live: LiveClaim, writes: bool) -> None:
        Handle.__init__(self, live, writes)
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
        self.check()
        if self.kind not in ("write", "read"):
            raise ConfigError(f"only a write lease can be downgraded, not a {self.kind}")
        run(self._engine.stop_writing(self))

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


class Lock:
    """A lock, one mode of a read-write lock, or a semaphore: a handle factory without state of its own."""

    _given = False

    def __init__(self, engine: Engine, ask: Ask) -> None:
        self._engine = engine
        self._ask = ask
        self._entered: list[Lease] = []

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._ask.name

    def acquire(self, timeout: arguments.Seconds | None = None) -> Lease:
        """The lease, when it is this claim's turn; AcquireTimeout if that did not come in time."""
        lease = None
        try:
            lease = run(self._engine.acquire(self._ask, arguments.a_timeout(timeout), self._lease))
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
            lease = run(self._engine.acquire(self._ask, None, self._lease, wait=False))
            if lease is not None:
                lease._given = True
            return lease
        except BaseException:
            run(self._engine.give_up(lease))
            raise

    def _lease(self, live: LiveClaim) -> Lease:
        return Lease(self._engine, live, self._ask.kind == "write")

    def release(self) -> NoReturn:
        """Explains: a lock holds nothing, the lease that `acquire` returned does."""
        raise released_as_a_lock(self.name)

    def __enter__(self) -> Lease:
        lease = None
        try:
            lease = run(self._engine.acquire(self._ask, None, self._lease))
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
            lease = last_entered(self._entered, self._engine.runtime.me(), self.name)
            take_out(self._entered, lease)
            lease._leave(kind, error, trace)
        except LocklineError:
            raise
        except BaseException:
            if lease is None:
                lease = last_entered(self._entered, self._engine.runtime.me(), self.name)
            take_out(self._entered, lease)
            run(self._engine.give_up(lease))
            raise


# Each block that a `with` begins has an end of its own, so that even one that was cut off before its end could run is known.
Lease.__exit__ = Exit(Lease.__exit__)  # type: ignore[method-assign, assignment]
Lock.__exit__ = Exit(Lock.__exit__)  # type: ignore[method-assign, assignment]


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
            if says is not None:
                raise ConfigError("this client blocks; decorate coroutines with a client of lockline.aio")

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                key = name(*args, **kwargs) if callable(name) else name
                lock = self.lock(key, ttl, renew=renew, max_hold=max_hold, meta=meta)
                with lock.acquire(timeout):
                    return function(*args, **kwargs)

            return wrapper  # type: ignore[return-value]

        return decorate

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
        return run(self._engine.ask(lambda until: self._engine.backend.evict(name, until, which)))

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


def connect(target: Any = None, *, owner: str | None = None, **options: Any) -> Client:
    """A client for a URL, or for a client object of a backend's own library. No I/O before the first use.

    Without a target: `LOCKLINE_URL`, or what ~/.config/lockline.toml or /etc/lockline.toml names, or else the embedded default,
    this machine; `LOCKLINE_REQUIRE=server` refuses the last.
    """
    refuse_green_threads()
    runtime = BlockingRuntime()
    if owner is not None:
        arguments.an_owner(owner)
    return Client(Engine(open_backend(target, runtime, options), runtime, owner))
