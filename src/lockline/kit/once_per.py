"""Once per period: one caller runs it in each slot of the store's time, the others find it running or done."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from ..core import arguments
from ..core.backend import AskedForTime, Backend, Keeping
from ..core.claim import Record
from ..core.engine import PATIENCE, Engine
from ..core.handle import H
from ..core.live import LiveClaim
from ..core.shells import gives_instead
from ..core.terms import Terms, terms_for
from ..errors import AcquireTimeout, ConfigError, LeaseLost, printable

T = TypeVar("T")
R = TypeVar("R")
Slot = int | str
OnBusy = Literal["skip", "wait", "raise"]

WHAT: Final = "once-per"
"""Under which name the last *done* is kept beside the line."""
REMEMBERED: Final = 32
"""Periods for which the last *done* is remembered: so far back `missed` can count."""
A_CALENDAR: Final = 400 * 86400.0
"""How long it is remembered where the slots are the caller's own: more than a year."""


@dataclass(frozen=True, slots=True)
class Run(Generic[T]):
    """What became of one call in its slot; true if it ran here."""

    state: Literal["ran", "done", "running"]
    slot: Slot
    """Which slot it was: the store's time divided by the period and rounded, or what `slot=` said."""
    missed: int | None
    """How many slots passed without a run since the last *done*; None if that is not known."""
    value: T | None = None
    """What the function returned, where it ran here."""

    def __bool__(self) -> bool:
        return self.state == "ran"


class Slots(NamedTuple):
    """How the store's time is cut into slots."""

    period: float
    named: Callable[[datetime], Slot] | None

    def at(self, now: float) -> Slot:
        """The slot of that moment. Its borders are half a period away from round times, at which cron starts jobs."""
        if self.named is None:
            return int(now / self.period + 0.5)
        slot = self.named(datetime.fromtimestamp(now, UTC))
        if isinstance(slot, bool) or not isinstance(slot, (int, str)):
            raise ConfigError(f"slot gives a text or a whole number for a moment, not {slot!r}")
        return slot


def slots_of(period: object, slot: object) -> Slots:
    """The slots that the caller asks for."""
    if slot is None:
        return Slots(arguments.a_period(period, "the period"), None)
    if period is not None:
        raise ConfigError("once_per takes a period or slot=, not both")
    named: Callable[..., Any] = arguments.a_callback(slot, "slot")
    return Slots(A_CALENDAR / REMEMBERED, named)


def an_on_busy(value: object) -> OnBusy:
    """What to do while another one runs it."""
    if value not in ("skip", "wait", "raise"):
        raise ConfigError(f"on_busy is 'skip', 'wait' or 'raise', not {value!r}")
    return value


def keeping_of(backend: Backend, what: str) -> Keeping:
    """The backend, if it can keep something beside a line; ConfigError before any I/O if it cannot."""
    if not isinstance(backend, Keeping):
        raise ConfigError(
            f"{what} has to keep something in the store, in one step with a look at the claim, and {backend.url} cannot: its servers know "
            "nothing of each other. memory:, local:, redis:// (with Sentinel and Cluster), postgresql://, mysql://, etcd://, "
            "consul:// and zk:// can"
        )
    return backend


async def tell_time(store: Keeping, span: float, until: float) -> None:
    """Let a store that has to be asked for its time say it, exactly enough for what lasts so long."""
    if isinstance(store, AskedForTime):
        await store.tell_time(span, until)


class Held(Protocol):
    """The lease of whoever runs it."""

    @property
    def name(self) -> str: ...
    @property
    def token(self) -> int: ...
    def remaining(self) -> float: ...
    def check(self) -> None: ...


def rest_of(handle: Held) -> float:
    """How long to try to write what was done under this lease: until it ends, because then another caller does it again."""
    return max(PATIENCE, handle.remaining())


class OncePer:
    """One name and its slots on one backend."""

    def __init__(self, engine: Engine, terms: Terms, slots: Slots) -> None:
        self._engine = engine
        self.terms = terms
        self._slots = slots
        self._store = keeping_of(engine.backend, "once_per")

    async def look(self, patience: float = PATIENCE) -> Run[Any]:
        """How the slot of this moment stands, for one who has not asked for the lock yet: done, or free to try."""

        async def record(until: float) -> Record:
            await tell_time(self._store, self._slots.period, until)
            return await self._store.kept(self.terms.name, WHAT, until)

        return self._read(await self._engine.ask(record, patience))

    async def enter(self, token: int) -> Run[Any]:
        """The same for one who holds the lock: whoever held it before can no longer say that a slot is done."""
        remembered = self._slots.period * REMEMBERED
        ask = self._store.kept
        return self._read(await self._engine.ask(lambda until: ask(self.terms.name, WHAT, until, token, remembered)))

    def _read(self, record: Record) -> Run[Any]:
        slot = self._slots.at(record.now)
        if record.value is None:
            return Run("running", slot, None)
        last, period = json.loads(record.value)
        if self._slots.named is not None:
            return Run("done", slot, 0) if last == slot else Run("running", slot, None)
        if period != self._slots.period:
            # The slots were numbered otherwise then; the time at which the last one was done still counts.
            return Run("done", slot, 0) if self._slots.at(record.written) == slot else Run("running", slot, None)
        # A clock that was set back finds slots done that are still to come.
        return Run("done" if last >= slot else "running", slot, max(0, slot - last - 1))

    async def finish(self, handle: Held, slot: Slot) -> None:
        """Say that the slot is done; LeaseLost if another one has begun to run it since."""
        period = self._slots.period
        value, remembered = json.dumps((slot, period)).encode(), period * REMEMBERED
        if not await self._engine.ask(
            lambda until: self._store.keep(self.terms.name, WHAT, value, handle.token, remembered, until),
            rest_of(handle),
        ):
            handle.check()
            raise LeaseLost(
                handle.name, token=handle.token, reason="taken", cause="gone",
                detail="another one has begun to run this slot",
            )  # fmt: skip

    async def run(
        self, make: Callable[[LiveClaim], H], on_busy: OnBusy, body: Callable[[H, Callable[[], Awaitable[T]]], Awaitable[T]],
        call: Callable[[], Awaitable[R]],
    ) -> Run[R]:  # fmt: skip
        """Run the call in its slot, within the `with` that is `body`; or not, and why."""
        seen: Run[R] = await self.look()
        if seen.state == "done":
            return seen
        waits = on_busy == "wait"
        handle = await self._engine.acquire(self.terms, self.terms.timeout if waits else PATIENCE, make, wait=waits)
        if handle is None:
            if on_busy == "raise":
                raise await self._busy()
            return seen

        async def inside() -> Run[R]:
            entered: Run[R] = await self.enter(handle.token)
            if entered.state == "done":
                return entered
            value = await call()
            await self.finish(handle, entered.slot)
            return Run("ran", entered.slot, entered.missed, value)

        return await body(handle, inside)  # type: ignore[arg-type, return-value]

    async def _busy(self) -> AcquireTimeout:
        line = await self._engine.ask(lambda until: self._engine.backend.look(self.terms.name, until))
        holders = tuple(f"{printable(held.owner)}, token {held.token}" for held in line.holders[:3])
        return AcquireTimeout(self.terms.name, waited=0.0, holders=holders)


class Wish:
    """What a decorator was told, checked before there is a function."""

    def __init__(
        self, engine: Engine, slots: Slots, on_busy: OnBusy, name: object, ttl: object, timeout: object,
        meta: Mapping[str, Any] | None,
    ) -> None:  # fmt: skip
        keeping_of(engine.backend, "once_per")
        self._engine = engine
        self._slots = slots
        self.on_busy: OnBusy = on_busy
        self._name = name
        self._terms = terms_for(
            "lock", 1, name if isinstance(name, str) else "-", ttl, True, None, meta, timeout=timeout
        )
        if name is not None and not isinstance(name, str) and not callable(name):
            raise ConfigError(f"name is a text, or makes one from the arguments of the call, not {name!r}")

    def check(self, function: Callable[..., object], *, awaited: bool) -> None:
        """ConfigError for what this shell cannot run, or what has no name."""
        if not callable(function):
            raise ConfigError(f'@once_per decorates a function, not {function!r}: write @client.once_per("15m")')
        gives = gives_instead(function)
        if "generator" in gives or awaited != bool(gives):
            cure = "a client of lockline" if awaited else "a client of lockline.aio"
            raise ConfigError(f"this client cannot run what gives {gives or 'no coroutine'}; use {cure}")
        if self._name is None:
            arguments.a_name(name_of(function))

    def once(self, function: Callable[..., object], args: Any, kwargs: Any) -> OncePer:
        """The name that this call goes by, and its slots."""
        name = name_of(function) if self._name is None else self._name
        if callable(name):
            name = name(*args, **kwargs)
        return OncePer(self._engine, self._terms._replace(name=arguments.a_name(name)), self._slots)


def name_of(function: Callable[..., object]) -> str:
    """What a decorated function is called on every machine. ConfigError where another function may have the same name."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not module or not name:
        raise ConfigError(f"{function!r} has no name; say once_per(..., name=...)")
    found = (module == "__main__", "<lambda>" in name, "<locals>" in name, "." in name)
    if any(found):
        what = ("part of the program that runs", "a lambda", "made in a function", "a method")[found.index(True)]
        raise ConfigError(f"{name} is {what}: another one may have the same name; say once_per(..., name=...)")
    return f"{module}.{name}"
