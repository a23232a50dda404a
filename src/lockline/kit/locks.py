"""Several locks at once: one global order, one deadline, all or nothing, and lost as soon as one is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ..core import arguments
from ..core.engine import Engine
from ..core.handle import H
from ..core.live import A_DETACH, DETACHING, GIVEN_BACK, LiveClaim, takes_an_argument
from ..core.terms import Terms, terms_for
from ..errors import AcquireTimeout, ConfigError, LeaseLost, LocklineError, NotHeld
from ..runtime import Signal

Make = Callable[[LiveClaim], H]
L = TypeVar("L", bound="AnyLocks")
"""Several locks of one shell."""


def in_order(names: Sequence[object]) -> list[str]:
    """The names without repeats, in the order in which everybody takes them: nobody waits in a circle."""
    if not names:
        raise ConfigError("locks() takes the names of one lock or more")
    return sorted({arguments.a_name(name) for name in names}, key=str.encode)


async def take_all(engine: Engine, wanted: Sequence[Terms], timeout: float | None, make: Make[H]) -> list[H]:
    """A handle for each, all of them good; AcquireTimeout, with nothing held, if that did not come in time."""
    now = engine.runtime.now
    deadline = None if timeout is None else now() + timeout
    while True:
        taken: list[H] = []
        try:
            for terms in wanted:
                left = None if deadline is None else max(0.0, deadline - now())
                if left == 0 and taken:
                    raise AcquireTimeout(terms.name, waited=timeout or 0.0)
                handle = await engine.acquire(terms, left, make)
                assert handle is not None
                taken.append(handle)
            if all(handle.valid for handle in taken):
                return taken
        except BaseException:
            await give_up_all(engine, taken)
            raise
        # One was lost while the others were waited for: nobody held anything yet, so it is only begun again.
        await give_up_all(engine, taken)


async def give_up_all(engine: Engine, taken: Sequence[H]) -> None:
    """Give back what the caller never got, the last one first."""
    for at in reversed(range(len(taken))):
        try:
            await engine.release(taken[at])
        except LocklineError:
            continue  # lost, or owed by the keeper; the error to tell is another
        except BaseException:
            for handle in taken[: at + 1]:
                await engine.give_up(handle)
            raise


async def release_all(engine: Engine, taken: Sequence[H]) -> None:
    """Give all of them back, the last one first; then the first error that any release gave, a loss before all others."""
    problems: list[LocklineError] = []
    for at in reversed(range(len(taken))):
        try:
            await engine.release(taken[at])
        except LocklineError as problem:
            problems.append(problem)
        except BaseException:
            await give_up_all(engine, taken[:at])
            raise
    losses = [problem for problem in problems if isinstance(problem, LeaseLost)]
    for first in losses or problems:
        raise first


class AnyLeases(Mapping[str, H], Generic[H]):
    """Leases that were taken together, by name: good as long as every one of them is."""

    _signal: Signal | None = None
    """For those who wait for a loss; set once, when one of them is lost or none is held any more."""

    def __init__(self, engine: Engine, leases: Sequence[H]) -> None:
        self._engine = engine
        self._leases = {lease.name: lease for lease in leases}
        self._me = engine.runtime.me()

    def __getitem__(self, name: str) -> H:
        return self._leases[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._leases)

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each name."""
        return {name: lease.token for name, lease in self.items()}

    @property
    def valid(self) -> bool:
        """Whether every one of them may still be trusted. No I/O; once False, for ever False."""
        return all(lease.valid for lease in self.values())

    def remaining(self) -> float:
        """Seconds until the first of them ends by the local clock. No I/O."""
        return min(lease.remaining() for lease in self.values())

    def check(self) -> None:
        """Raise LeaseLost if one of them can no longer be trusted, NotHeld if they were released. No I/O."""
        for lease in self.values():
            lease.check()

    def on_lost(self, callback: Callable[..., object]) -> None:
        """Call back once when the first of them is lost, with the LeaseLost if the callback takes an argument."""
        waiting = [arguments.a_callback(callback, "on_lost")]
        wants_news = takes_an_argument(callback)

        def call(lost: LeaseLost) -> None:
            try:
                # Looked for and taken in one step: the losses of two are told in two threads, perhaps at the same moment.
                first = waiting.pop()
            except IndexError:
                return
            first(lost) if wants_news else first()

        for lease in self.values():
            lease.on_lost(call)

    def _is_lost(self) -> bool:
        return any(lease._live.remaining() <= 0 and lease._live.lost is not None for lease in self.values())

    async def _ended(self, until: float | None) -> bool:
        """Wait until one of them is lost (True), or they are released, or that moment has come (False)."""
        signal = self._signal
        if signal is None:
            signal = self._engine.runtime.signal()
            for lease in self.values():
                lease._live.listen(signal.set)
            # Only now, for all who wait: of two threads that come first, both get the same.
            signal = vars(self).setdefault("_signal", signal)
        while not self._is_lost():
            held = self._held()
            if not held:
                return False
            now = self._engine.runtime.now()
            if until is not None and now >= until:
                return False
            # As of a single one: while a detach is under way its deadline says nothing.
            ends = min(live.deadline if live.state is not DETACHING else now + A_DETACH for live in held)
            await signal.wait(ends if until is None else min(until, ends))
        return True

    def _held(self) -> list[LiveClaim]:
        """Those that were not given back yet; one whose release got no answer was."""
        return [lease._live for lease in self.values() if lease._open and lease._live.state not in GIVEN_BACK]

    async def _release(self) -> None:
        if not any(lease._open for lease in self.values()):
            raise NotHeld(f"the leases on {', '.join(map(repr, self))} have been released already")
        try:
            await release_all(self._engine, list(self.values()))
        finally:
            if self._signal is not None and not self._held():
                self._signal.set()

    def _hand_over(self) -> None:
        """From here on they are the caller's: one that is dropped is warned of, and no longer given back at once."""
        for lease in self.values():
            lease._given = True

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(repr, self.values()))}>"


class AnyLostTogether:
    """The loss of the first of several leases, as an event."""

    def __init__(self, leases: AnyLeases[Any]) -> None:
        self._leases = leases

    def is_set(self) -> bool:
        """Whether one of the leases is lost. No I/O."""
        return self._leases._is_lost()

    def _until(self, timeout: arguments.Seconds | None) -> float | None:
        seconds = arguments.a_timeout(timeout)
        return None if seconds is None else self._leases._engine.runtime.now() + seconds


class Together:
    """What is taken in one go and given back in one: its blocks, and how its leases are made."""

    def __init__(self, engine: Engine, first: Terms, timeout: float | None, lock_class: Callable[..., Any]) -> None:
        self._engine = engine
        self._timeout = timeout
        self._make: Callable[[LiveClaim], Any] = lock_class(engine, first)._lease
        self._entered: list[Any] = []

    def _seconds(self, timeout: arguments.Seconds | None) -> float | None:
        return self._timeout if timeout is None else arguments.a_timeout(timeout)

    def _last_entered(self) -> Any:
        """The leases of the block that this thread or task leaves, taken out."""
        me = self._engine.runtime.me()
        own = [leases for leases in self._entered if leases._me is me] or self._entered
        if not own:
            raise NotHeld(f"no block on {self!r} that is left here was ever entered")
        self._entered.remove(own[-1])
        return own[-1]


class AnyLocks(Together):
    """Several locks as one: a handle factory without state of its own."""

    def __init__(
        self, engine: Engine, wanted: Sequence[Terms], timeout: float | None, lock_class: Callable[..., Any]
    ) -> None:
        super().__init__(engine, wanted[0], timeout, lock_class)
        self._wanted = wanted

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which they are taken."""
        return tuple(terms.name for terms in self._wanted)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(repr, self.names))} on {self._engine.backend.url}>"


class AnyKit(Generic[L]):
    """What a client makes of several locks without asking its backend."""

    _engine: Engine
    _lock_class: Any
    _locks_class: type[L]

    def locks(
        self,
        *names: str,
        ttl: arguments.Seconds = 10.0,
        timeout: arguments.Seconds | None = None,
        renew: bool = True,
        max_hold: arguments.Seconds | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> L:
        """Several locks at once, all or nothing: taken in one order by everybody, under one deadline, lost as soon as one is."""
        wanted = [terms_for("lock", 1, name, ttl, renew, max_hold, meta) for name in in_order(names)]
        return self._locks_class(self._engine, wanted, arguments.a_timeout(timeout), self._lock_class)
