"""What both shells are where they do no I/O: the locks that a client makes, and the blocks that are left."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncContextDecorator, ContextDecorator
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Generic, NoReturn, TypeVar

from ..errors import ConfigError, NotHeld
from ..guarantees import Guarantees
from . import arguments
from .backend import Backend, EndingWithClient, Lasting
from .claim import WHOLE
from .engine import Engine
from .handle import H, Handle
from .live import LiveClaim
from .place import is_full
from .terms import Terms, terms_for

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
L = TypeVar("L", bound="AnyLock[Any]")
"""The lock of one shell."""
RW = TypeVar("RW", bound="AnyRWLock[Any]")


class AnyLost:
    """The loss of a lease, as an event."""

    __slots__ = ("_live",)

    def __init__(self, live: LiveClaim) -> None:
        self._live = live

    def is_set(self) -> bool:
        """Whether the lease is lost. No I/O."""
        self._live.remaining()
        return self._live.lost is not None

    def _until(self, timeout: arguments.Seconds | None) -> float | None:
        seconds = arguments.a_timeout(timeout)
        return None if seconds is None else self._live.runtime.now() + seconds


class AnyLease(Handle):
    """A lease that knows its client."""

    __slots__ = ("_engine",)
    _engine: Engine

    def guard(self, connection: Any = None) -> Any:
        """What makes your own transaction on the same store fail once the lease is gone: ZooKeeper, etcd, Consul. No I/O.

        On a database with your connection, in the middle of your transaction, and awaited where the connection is: on PostgreSQL its
        commit will fail; on MySQL the call itself does, and until the commit nobody can come after it.
        """
        self.check()
        return self._engine.guard(self._live, connection)

    def adopt(self) -> None:
        """Bind the lease to the thread or task that calls this, instead of the one that took it. No I/O.

        Renewal stops when the thread or task that took the lease has ended, and re-entrance is counted for it;
        call this where the lease was handed over to.
        """
        self._engine.adopt(self._live)

    def _check_downgrade(self) -> None:
        self.check()
        if self.kind not in ("write", "read"):
            raise ConfigError(f"only a write lease can be downgraded, not a {self.kind}")


class AnyLock(Generic[H]):
    """A handle factory without state of its own."""

    def __init__(self, engine: Engine, terms: Terms) -> None:
        self._engine = engine
        self._terms = terms
        self._entered: list[H] = []

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._terms.name

    async def _is_full(self, until: float) -> bool:
        return is_full(await self._engine.backend.look(self.name, until), self._terms)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {described(self._terms)} on {self._engine.backend.url}>"

    def release(self) -> NoReturn:
        """Explains: a lock holds nothing, the lease that `acquire` returned does."""
        raise ConfigError(
            "a lock has nothing to release, its lease has: `lease = lock.acquire()` ... `lease.release()`, or `with lock:` "
            f"({self.name!r})"
        )

    def _last_entered(self) -> H:
        """The lease of the block that this thread or task leaves: its own last one, or else the last that anybody entered.

        A lease belongs to the object: a block may be left elsewhere than it was entered (an ExitStack, an async fixture).
        """
        me = self._engine.runtime.me()
        own = next((lease for lease in reversed(self._entered) if lease._live.key[0] is me), None)
        try:
            return own if own is not None else self._entered[-1]
        except IndexError:
            raise NotHeld(f"no block on {self.name!r} that is left here was ever entered") from None

    def _take_out(self, lease: H) -> None:
        """The block of this lease is left; it may have been before."""
        try:
            self._entered.remove(lease)
        except ValueError:
            pass


class AnyRWLock(Generic[L]):
    """Two locks on one line."""

    _lock_class: type[L]

    def __init__(self, engine: Engine, terms: Terms) -> None:
        self._engine = engine
        self._terms = terms

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._terms.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {described(self._terms, of='read-write')} on {self._engine.backend.url}>"

    def read(self) -> L:
        """The shared side: any number of readers, and no writer that came before them."""
        return self._lock_class(self._engine, self._terms._replace(kind="read", weight=1))

    def write(self) -> L:
        """The exclusive side. While it is held, the same thread or task may also read."""
        return self._lock_class(self._engine, self._terms._replace(kind="write", weight=WHOLE))


class AnyClient(Generic[L, RW]):
    """What a client says and makes without asking its backend."""

    _lock_class: type[L]
    _rwlock_class: type[RW]

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.owner} on {self.url}{', closed' if self._engine.closed else ''}>"

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
        timeout: arguments.Seconds | None = None,
        on_wait: Callable[[int], object] | None = None,
        max_waiting: int | None = None,
        keep_for: arguments.Seconds | str | None = None,
        lock_delay: arguments.Seconds = 0.0,
    ) -> L:
        """One at a time.

        `timeout` counts in `with` and in `acquire()`; `on_wait` is called with how many are ahead, when the wait begins and
        whenever that has changed; with `max_waiting` waiting already, LineFull instead of a place at the end.
        `keep_for` holds the name at least that long from the grant, also after a release (or `close`) before that. After a holder that was
        lost, not one that released, the next waits `lock_delay` longer: a late write has that much less of a chance.
        """
        terms = terms_for(
            "lock",
            1,
            name,
            ttl,
            renew,
            max_hold,
            meta,
            timeout=timeout,
            on_wait=on_wait,
            max_waiting=max_waiting,
            keep_for=keep_for,
            lock_delay=lock_delay,
        )
        return self._lock_class(self._engine, self._carried(terms))

    def rlock(
        self,
        name: str,
        ttl: arguments.Seconds = 10.0,
        *,
        renew: bool = True,
        max_hold: arguments.Seconds | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: arguments.Seconds | None = None,
        on_wait: Callable[[int], object] | None = None,
        max_waiting: int | None = None,
    ) -> L:
        """One at a time; the thread or task that holds it may take it again, under the same token."""
        terms = terms_for(
            "rlock", 1, name, ttl, renew, max_hold, meta, timeout=timeout, on_wait=on_wait, max_waiting=max_waiting
        )
        return self._lock_class(self._engine, self._carried(terms))

    def rwlock(
        self,
        name: str,
        ttl: arguments.Seconds = 10.0,
        *,
        renew: bool = True,
        max_hold: arguments.Seconds | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: arguments.Seconds | None = None,
        on_wait: Callable[[int], object] | None = None,
        max_waiting: int | None = None,
    ) -> RW:
        """Many readers or one writer, in order of arrival."""
        terms = terms_for(
            "read", WHOLE, name, ttl, renew, max_hold, meta, timeout=timeout, on_wait=on_wait, max_waiting=max_waiting
        )
        return self._rwlock_class(self._engine, self._carried(terms))

    def semaphore(
        self,
        name: str,
        limit: int,
        ttl: arguments.Seconds = 10.0,
        *,
        weight: int = 1,
        renew: bool = True,
        max_hold: arguments.Seconds | None = None,
        meta: Mapping[str, Any] | None = None,
        timeout: arguments.Seconds | None = None,
        on_wait: Callable[[int], object] | None = None,
        max_waiting: int | None = None,
    ) -> L:
        """At most `limit` at a time, each with its own lease and token; one that weighs more counts for as many.

        Where those inside say different limits, the smallest counts: a lower one is kept by whoever comes from then on, a
        higher one when the last who said the lower has left.
        """
        terms = terms_for(
            "permit", arguments.a_limit(limit), name, ttl, renew, max_hold, meta, weight=weight, timeout=timeout, on_wait=on_wait,
            max_waiting=max_waiting,
        )  # fmt: skip
        return self._lock_class(self._engine, self._carried(terms))

    def _carried(self, terms: Terms) -> Terms:
        """The terms, if this backend can keep them; ConfigError before any I/O if it cannot."""
        if terms.max_waiting is not None and not self.guarantees.fifo:
            raise ConfigError(
                f"{self.url} keeps no line whose length max_waiting could bound; every other backend does"
            )
        if terms.keep_for is not None and not isinstance(self._engine.backend, Lasting):
            raise ConfigError(
                f"keep_for has to outlive its client, and a claim on {self.url} cannot: memory:, local:, redis://, redlock://, "
                "etcd://, consul:// and the databases can; `lockline run --keep-for` stays for that long itself"
            )
        if terms.lock_delay and isinstance(self._engine.backend, EndingWithClient):
            raise ConfigError(
                f"{self.url} ends what a lost client held by itself, and knows of no lock_delay; memory:, local:, redis://, "
                "redlock://, etcd://, consul:// and the databases do"
            )
        return terms

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

        def lock(*args: Any, **kwargs: Any) -> L:
            key = name(*args, **kwargs) if callable(name) else name
            return self.lock(key, ttl, renew=renew, max_hold=max_hold, meta=meta)

        if not callable(name):
            lock()

        def decorate(function: F) -> F:
            # Without a name the function was taken for what makes one, and this is its first call.
            if not callable(function):
                raise ConfigError(f'@locked decorates a function, not {function!r}: write @client.locked("name")')
            gives = gives_instead(function)
            if "generator" in gives:
                raise ConfigError(
                    f"@locked would give the lock back before the body runs: a call gives {gives}; take the lock inside, "
                    "with `with client.lock(...)`"
                )
            return functools.wraps(function)(self._under(lock, timeout, function, gives))  # type: ignore[return-value]

        return decorate

    def _under(self, lock: Callable[..., L], timeout: Any, function: F, gives: str) -> Callable[..., Any]:
        """The function under the lock that its arguments name; ConfigError if it is of the other shell's kind."""
        raise NotImplementedError


def described(terms: Terms, of: str = "") -> str:
    """What a lock is, for people who print it."""
    kind = of or terms.kind
    limit = f" {terms.weight} of {terms.capacity}" if terms.kind == "permit" else ""
    return f"{terms.name!r} {kind}{limit}, ttl {terms.ttl:g} s"


def backend_of(client: AnyClient[Any, Any]) -> Backend:
    """The backend behind a client, for the project's own tools."""
    return client._engine.backend


def engine_of(client: AnyClient[Any, Any]) -> Engine:
    """The engine behind a client, for the project's own tools."""
    return client._engine


def bind_to_nobody(lease: AnyLease) -> None:
    """Let the lease outlive the thread or task that took it, and let that one ask for the lock again."""
    lease._engine.hand_on(lease._live)


def leave_to_its_ttl(lease: AnyLease) -> None:
    """Let the lease stay until its ttl is over when its client is closed, and when its process ends."""
    lease._live.outlives_client = True


def gives_instead(function: Callable[..., object]) -> str:
    """What a call of this function gives instead of running its body, in words; empty for a plain function."""
    for kind, says in (
        (inspect.isasyncgenfunction, "an async generator"),
        (inspect.isgeneratorfunction, "a generator"),
        (inspect.iscoroutinefunction, "a coroutine"),
    ):
        if kind(function) or kind(getattr(function, "__call__", None)):  # noqa: B004 - an object that is called
            return says
    return ""


def has_run(result: T, what: str) -> T:
    """The result of a call; ConfigError where that is a body that nobody has begun, which would run without the lock.

    Of a function that another decorator has wrapped this cannot be told before it is called.
    """
    body = getattr(result, "gen", None) if isinstance(result, ContextDecorator | AsyncContextDecorator) else result
    if isinstance(body, CoroutineType):
        body.close()
        gives = "a coroutine"
    elif isinstance(body, AsyncGeneratorType):
        gives = "an async generator"
    elif isinstance(body, GeneratorType) and inspect.getgeneratorstate(body) == inspect.GEN_CREATED:
        if body.gi_code.co_name == "<genexpr>":
            return result  # an expression over what was made under the lock
        gives = "a generator"
    else:
        return result
    cure = "use a client of lockline.aio, and " if gives == "a coroutine" else ""
    raise ConfigError(
        f"{what} would be over before the body runs: the call gave {gives}; {cure}decorate the body itself, beneath what wraps it"
    )
