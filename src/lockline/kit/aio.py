"""The kit's asyncio shell: every decision is in the files beside this one; here it is only awaited."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from ..core import arguments
from ..core.asking import asked
from ..core.block import leave_block
from ..core.claim import Standing
from ..core.engine import Engine
from ..core.hand_over import attach as attach_to
from ..core.hand_over import handing_over, read_ticket
from ..core.handle import Handle
from ..core.shells import has_run
from ..core.terms import terms_for
from ..core.watching import Watch
from ..errors import BackendUnavailable, ConfigError, LeaseLost
from ..runtime.scope import Scope
from ..runtime.termination import cancel_on_sigterm
from .codec import Codec
from .lead import a_main, is_the_end_of, leader_of, stand
from .locks import AnyKit, AnyLeases, AnyLocks, AnyLostTogether, Together, take_all
from .once import a_maker, flights_of
from .once_per import OnBusy, Run, Wish, an_on_busy, slots_of
from .pool import AnyPool, AnySlot, I, items_of, take_one

if TYPE_CHECKING:
    from ..aio import Lease

    _Leases = AnyLeases[Lease]
else:
    _Leases = AnyLeases

T = TypeVar("T")
P = ParamSpec("P")
B = TypeVar("B", bound="Leases")


class LostTogether(AnyLostTogether):
    """The loss of the first of several leases, as an event."""

    @asked
    async def wait(self, timeout: arguments.Seconds | None = None) -> bool:
        """Wait for the loss; False when it had not come by then, or they were released."""
        return await self._leases._ended(self._until(timeout))


class Leases(_Leases):
    """Leases that were taken together, by name: good as long as every one of them is."""

    _scope: Scope | None = None

    @property
    def lost(self) -> LostTogether:
        """An event that is set when the first of them is lost. Reading it does no I/O."""
        return LostTogether(self)

    async def release(self) -> None:
        """Give all of them back. LeaseLost if one was lost before, NotHeld if they were released before."""
        await self._release()

    async def __aenter__(self) -> Leases:
        self._scope = Scope("a lease was lost")
        for lease in self.values():
            lease._live.listen(self._scope.cancel)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        scope, self._scope = self._scope, None
        await leave_block(scope, error, self._release)


class _Taking(Together, Generic[B]):
    async def acquire(self, timeout: arguments.Seconds | None = None) -> B:
        """All of it; AcquireTimeout, with nothing held, if that did not come in time."""
        leases = await self._take(self._seconds(timeout))
        leases._hand_over()
        return leases

    async def _take(self, timeout: float | None) -> B:
        raise NotImplementedError

    async def __aenter__(self) -> B:
        leases = await self._take(self._timeout)
        self._entered.append(leases)
        await leases.__aenter__()
        return leases

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._last_entered().__aexit__(kind, error, trace)


class Locks(_Taking[Leases], AnyLocks):
    """Several locks as one: a handle factory without state of its own."""

    async def _take(self, timeout: float | None) -> Leases:
        return Leases(self._engine, await take_all(self._engine, self._wanted, timeout, self._make))


class Slot(AnySlot[I], Leases):
    """One item of a pool, for as long as its leases hold."""

    def __init__(self, engine: Engine, leases: list[Lease], item: I) -> None:
        super().__init__(engine, leases)
        self.item = item
        self._live = leases[-1]._live


class Pool(_Taking[Slot[I]], AnyPool[I]):
    """Several things of which each may be had by one: a handle factory without state of its own."""

    async def _take(self, timeout: float | None) -> Slot[I]:
        leases = await take_one(self._engine, self._permit, self._items, timeout, self._make)
        return Slot(self._engine, leases, self._items[leases[-1].name])


class Kit(AnyKit[Locks]):
    """What a client offers beyond its locks."""

    _locks_class = Locks
    close: Callable[[], Awaitable[None]]

    def pool(
        self,
        name: str,
        items: Sequence[I],
        ttl: arguments.Seconds = 10.0,
        *,
        timeout: arguments.Seconds | None = None,
        renew: bool = True,
        max_hold: arguments.Seconds | None = None,
        meta: Mapping[str, Any] | None = None,
        on_wait: Callable[[int], object] | None = None,
        max_waiting: int | None = None,
    ) -> Pool[I]:
        """Which one of several things: `slot.item` is nobody else's while the slot holds. In order of arrival."""
        named = items_of(name, items)
        permit = terms_for(
            "permit", len(named), name, ttl, renew, max_hold, meta, timeout=timeout, on_wait=on_wait, max_waiting=max_waiting
        )  # fmt: skip
        return Pool(self._engine, permit, named, self._lock_class)

    async def once(
        self,
        key: str,
        make: Callable[[], Awaitable[T]],
        fresh: arguments.Seconds | str,
        *,
        ttl: arguments.Seconds = 10.0,
        timeout: arguments.Seconds | None = None,
        codec: Codec | None = None,
    ) -> T:
        """The value of the key, computed by one of all who ask for it at a time, and given to all for `fresh` seconds.

        Bytes are kept as they are, all else as JSON, or by `codec` (dumps and loads). An error reaches those who waited for that
        very computation, in other processes as OnceFailed, and is not kept. `timeout` ends the wait of this caller, not the computation.
        """
        a_maker(make, awaited=True)

        async def compute(_: Handle) -> T:
            made: T = await _awaited(make())
            return made

        value: T = await flights_of(self, self._engine).get(key, compute, fresh, ttl, timeout, codec)
        return value

    def once_per(
        self,
        period: arguments.Seconds | str | None = None,
        *,
        name: str | Callable[..., str] | None = None,
        slot: Callable[[datetime], int | str] | None = None,
        on_busy: OnBusy = "skip",
        ttl: arguments.Seconds = 10.0,
        timeout: arguments.Seconds | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Awaitable[Run[T]]]]:
        """Decorate a function so that it runs once in each slot of the store's time, whoever calls it; a call gives a `Run`.

        One runs it, renewed while it runs; meanwhile the others skip it, wait for its end or raise, as `on_busy` says. A run that
        fails or crashes frees its slot for the next who asks. `slot` names slots of your own from the store's time in UTC.
        """
        wish = Wish(self._engine, slots_of(period, slot), an_on_busy(on_busy), name, ttl, timeout, meta)

        def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[Run[T]]]:
            wish.check(function, awaited=True)

            @functools.wraps(function)
            async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Run[T]:
                once = wish.once(function, args, kwargs)

                async def call() -> T:
                    return has_run(await function(*args, **kwargs), "@once_per")

                async def within(lease: Lease, inside: Callable[[], Awaitable[Run[T]]]) -> Run[T]:
                    async with lease:
                        return await inside()

                return await once.run(self._lock_class(self._engine, once.terms)._lease, wish.on_busy, within, call)

            return wrapper

        return decorate

    async def lead(
        self,
        name: str,
        main: Callable[[Lease], Awaitable[T]],
        *,
        ttl: arguments.Seconds = 10.0,
        meta: Mapping[str, Any] | None = None,
    ) -> T:
        """Run `main(term)` whenever this process leads; what it returned, once it has returned while it led.

        The term is the lease: its token is higher than that of every term before. On loss `term.lost` is set (in asyncio main
        is cancelled), and this stands in the line again when main has come back. It resigns when main returns or raises, at
        once on SIGTERM (in the main thread, unless the program has a handler of its own), and when the process ends.
        """
        terms = terms_for("lock", 1, name, ttl, True, None, meta)
        a_main(main, awaited=True)
        make = self._lock_class(self._engine, terms)._lease
        with cancel_on_sigterm():
            while True:
                term = None
                returned: list[T] = []
                try:
                    term = await stand(self._engine, terms, make)
                    async with term:
                        returned.append(await _begun(main, term))
                    return returned[0]
                except LeaseLost as lost:
                    if not is_the_end_of(term, lost):
                        raise
                except BackendUnavailable:
                    # It has resigned as far as it can: the keeper repeats what got no answer.
                    if returned:
                        return returned[0]
                    raise

    async def attach(self, ticket: str) -> Lease:
        """The lease of a ticket that `lease.detach` gave, here or elsewhere, under a higher token; NotHeld if it holds nothing any more.

        It works once. In a worker: `with client.attach(ticket) as lease:`.
        """
        where = read_ticket(ticket)
        handing_over(self._engine.backend)
        make = self._lock_class(self._engine, where.terms)._lease
        lease: Lease = await self._engine.ask(lambda until: attach_to(self._engine, where, make, until))
        lease._given = True
        return lease

    async def leader(self, name: str) -> Standing | None:
        """Who leads, with owner, token and meta; None if nobody does."""
        return await leader_of(self._engine, arguments.a_name(name))

    def watch(self, name: str, *, every: arguments.Seconds = 0.5) -> AsyncIterator[Standing | None]:
        """Who leads now, and then each change, as the store tells of it; a silent store is waited for.

        Where a store does not tell those who stand in no line, it is looked at that often.
        """
        return self._watch(Watch(self._engine, arguments.a_name(name), arguments.a_ttl(every, "every")))

    async def _watch(self, watch: Watch) -> AsyncIterator[Standing | None]:
        try:
            while True:
                yield await watch.next()
        finally:
            await watch.close()


def _begun(main: Callable[[Lease], Awaitable[T]], term: Lease) -> Awaitable[T]:
    begun = main(term)
    if not inspect.isawaitable(begun):
        raise ConfigError(
            "this client awaits what main(term) gives: make it an `async def`, or use a client of lockline"
        )
    return begun


async def _awaited(made: Any) -> Any:
    """What a coroutine gives, or what a plain function gave."""
    return await made if inspect.isawaitable(made) else made
