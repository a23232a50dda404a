"""Compute once, give it to all: callers of one key share one computation, in this process and over machines.

Whoever finds nothing fresh tries to write on the line of the key; whoever finds somebody at it stands there as a reader, and all
of those are let in together when the writer leaves. The value is kept under the writer's token, so a slow old
computation never overwrites a newer one. An error is noted beside it for a moment, for those alone who waited while it was computed.
"""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, NamedTuple

from ..core import arguments
from ..core.backend import AskedForTime, KeepingLess, TellsWhatIsKept
from ..core.claim import WHOLE, Record
from ..core.engine import GRACE, PATIENCE, Engine
from ..core.handle import Handle
from ..core.live import Call
from ..core.shells import gives_instead
from ..core.terms import Terms, terms_for
from ..core.weakly import weakly
from ..errors import (
    AcquireTimeout,
    BackendUnavailable,
    ClientClosed,
    ConfigError,
    LocklineError,
    OnceFailed,
    WouldDeadlock,
)
from ..runtime.clock import TRUSTED
from ..runtime.fork import tell_after_fork
from .codec import LARGEST, Codec, a_codec, decode, encode
from .once_per import keeping_of, rest_of, tell_time

WHAT: Final = "once"
"""Under which name the value is kept beside the line."""
FAILURE: Final = "once-error"
"""And under which the last error, for those who waited for it."""
TOLD_FOR: Final = 30.0
"""Seconds for which an error is there to be found: whoever waited comes as soon as the one who failed has left."""
LONGEST_TEXT: Final = 2000
"""Characters of an error's text that travel."""
ROOM: Final = 16 << 20
"""Bytes of fresh values that a client remembers."""
BESIDES: Final = 256
"""Bytes that each takes besides its own and its name's: of small values these are nearly all."""
MARKED: Final = 3600.0
"""Seconds for which the token of one who began to compute keeps older ones out, at least."""
NET: Final = 2.0
"""How often one who waits for a computation looks whether it is still under way: an exception can strike anywhere."""


class Fresh(NamedTuple):
    """A value that was seen in the store."""

    data: bytes
    born: float
    """When it was written, at the latest, on the clock of deadlines."""
    ends: float

    def serves(self, at: float, fresh: float) -> bool:
        """Whether it is for one who asked then: nobody has begun to make a newer one by that time."""
        return at < self.ends and at < self.born + fresh * TRUSTED


class SeenValue(NamedTuple):
    """A look at the store: the value, if it is fresh enough, and what was found."""

    value: Fresh | None
    record: Record


class Flight:
    """One computation in this process, and what came of it."""

    def __init__(self, engine: Engine) -> None:
        self.landed = engine.runtime.signal()
        self.outcome: Fresh | Exception | None = None
        """The value, or the error; None if it was cut short, and somebody else has to begin again."""
        self.failure: Exception | None = None  # of the computation itself
        self.trace: TracebackType | None = None
        """Where the error came from: each caller's own way from there on is nothing to the others."""
        self.cut: BaseException | None = None
        """What cut it short, for the caller who began it: to begin again by itself could go on for ever."""
        self.me: object = None
        """The thread or task that is at it."""
        self.answered = False
        """Whether the store has said by now who computes it."""
        self.call: Call = []

    def under_way(self) -> bool:
        """Whether somebody is at it; a coroutine that is over has no frame, by whatever way it ended."""
        coroutine = self.call[0]() if self.call else None
        return coroutine is not None and coroutine.cr_frame is not None


class Flights:
    """The computations of one client, and the fresh values that it has seen."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = keeping_of(engine.backend, "once")
        least = engine.backend.largest_kept if isinstance(engine.backend, KeepingLess) else LARGEST
        self._largest = min(LARGEST, least)
        self.forked()
        tell_after_fork(self)
        engine._hints.at_close(weakly(self._end_waits))

    def _end_waits(self) -> None:
        """The client was closed: whoever waits for another one's computation has nothing to wait for."""
        for flight in list(self._flights.values()):
            flight.landed.set()

    def forked(self) -> None:
        """In a child: nobody here computes anything."""
        self._flights: dict[tuple[str, float], Flight] = {}
        """By name, and by how old a value may be: what is fresh enough for one caller is not for another."""
        self._seen: dict[str, Fresh] = {}
        self._size = 0

    async def get(
        self, key: object, compute: Callable[[Handle], Awaitable[Any]], fresh: object, ttl: object, timeout: object, codec: Codec | None
    ) -> Any:  # fmt: skip
        """The value of the key, not older than `fresh`; AcquireTimeout for this caller alone."""
        a_codec(codec)
        name, limit = arguments.a_name(key, "value"), arguments.a_period(fresh, "fresh")
        seconds, asked = arguments.a_timeout(timeout), self._engine.runtime.now()
        seen = self._seen.get(name)
        if seen is not None and seen.serves(asked, limit):
            return decode(seen.data, codec)
        wish = terms_for("read", WHOLE, name, ttl, True, None, None)
        deadline = None if seconds is None else asked + seconds
        while True:
            if self._engine.closed:
                raise ClientClosed()
            flight = Flight(self._engine)
            flying = self._fly(flight, wish, compute, limit, codec)
            flight.call.append(weakref.ref(flying))
            there = self._flights.setdefault((name, limit), flight)
            if there is not flight:
                flying.close()
                if there.me is self._engine.runtime.me() and there.under_way():
                    raise WouldDeadlock(f"this thread or task computes {name!r} already and would wait for itself")
            elif deadline is None and self._engine.runtime.flavour == "blocking":
                # In this thread, which has to wait for it anyway, and whose Ctrl-C ends it.
                await flying
            else:
                # As somebody of its own, whom neither this caller's cancel nor its timeout ends.
                try:
                    self._engine.runtime.spawn(lambda flying=flying: flying, "lockline-once")  # type: ignore[misc]
                except RuntimeError:
                    # No thread is to be had: whoever came meanwhile begins by himself.
                    flying.close()
                    self._land(flight, (name, limit))
                    raise
            del flying
            await self._wait(there, (name, limit), deadline, seconds)
            if isinstance(there.outcome, Fresh):
                # One that was held up may have looked before this caller asked, and too long before.
                if there is flight or there.outcome.serves(asked, limit):
                    return decode(there.outcome.data, codec)
            elif there.outcome is not None:
                raise there.outcome.with_traceback(there.trace)
            if there is flight and flight.cut is not None:
                raise flight.cut

    async def _wait(
        self, flight: Flight, key: tuple[str, float], deadline: float | None, timeout: float | None
    ) -> None:
        now = self._engine.runtime.now
        if not flight.under_way():
            # Over, or cut short before anybody could say so.
            self._land(flight, key)
        end = deadline = math.inf if deadline is None else deadline
        while not await flight.landed.wait(min(now() + NET, end)):
            # As in an acquire: no time is no reason not to ask.
            end = deadline if flight.answered else deadline + GRACE
            if now() >= end:
                if not flight.answered:
                    raise BackendUnavailable(f"{self._engine.backend.url} gave no answer in time")
                raise AcquireTimeout(key[0], waited=timeout or 0.0, holders=("who computes it",))
            if not flight.under_way():
                self._land(flight, key)

    def _land(self, flight: Flight, key: tuple[str, float]) -> None:
        if self._flights.get(key) is flight:
            self._flights.pop(key, None)
        flight.landed.set()

    async def _fly(
        self,
        flight: Flight,
        wish: Terms,
        compute: Callable[[Handle], Awaitable[Any]],
        fresh: float,
        codec: Codec | None,
    ) -> None:
        try:
            flight.me = self._engine.runtime.me()  # an error on another loop than the client's own
            flight.outcome = await self._obtain(flight, wish, compute, fresh, codec)
        except GeneratorExit:
            raise
        except BaseException as problem:
            if problem is flight.failure or isinstance(problem, LocklineError):
                flight.outcome, flight.trace = problem, problem.__traceback__
            else:
                flight.cut = problem  # also a soft time limit outside of the computation: its caller's own
        finally:
            self._land(flight, (wish.name, fresh))

    async def _obtain(
        self,
        flight: Flight,
        wish: Terms,
        compute: Callable[[Handle], Awaitable[Any]],
        fresh: float,
        codec: Codec | None,
    ) -> Fresh:
        """The fresh value from the store, or else computed here and kept there."""
        reads, writes = wish, wish._replace(kind="write", weight=WHOLE)
        may_wait = False
        await self._engine.ask(lambda until: tell_time(self._store, fresh, until))
        seen = await self._look(wish.name, fresh)
        while seen.value is None:
            # Not for as long as a mere try: of hundreds who compute at once the last has to wait for the answers to the others.
            handle = await self._engine.acquire(writes, None if may_wait else PATIENCE, _written, wait=may_wait)
            flight.answered = True
            if handle is None:
                # Somebody computes it: all who stand here are let in together when that one leaves.
                reader, value = await self._wait_for_value(reads, seen.record)
                await self._leave(reader)
                if value is not None:
                    return value
                began, seen = seen.record, await self._look(wish.name, fresh)
                if seen.value is None:
                    await self._raise_failure(wish.name, began, reader.token)
                # The one who computed is gone without a word: they go one by one.
                may_wait = True
                continue
            try:
                seen = await self._look(wish.name, fresh, handle.token)
                value = seen.value
                if value is None:
                    value = await self._compute(flight, handle, wish, compute, fresh, codec)
            finally:
                await self._leave(handle)
            if value is not None:
                return value
            seen = await self._look(wish.name, fresh)
        return seen.value

    async def _wait_for_value(self, reads: Terms, began: Record) -> tuple[Handle, Fresh | None]:
        """A place after the one who computes, and the value, where the store sent it along.

        By the store's own order it was written after this one had looked: a message that another claim was sent may come late.
        """
        store, name, asked = self._store, reads.name, self._engine.runtime.now()
        if not isinstance(store, TellsWhatIsKept):
            reader, record = await self._engine.acquire(reads, None, _read), None
        else:
            store.expect_kept(name, WHAT)
            try:
                reader = await self._engine.acquire(reads, None, _read)
            finally:
                record = store.told_of_kept(name, WHAT)
        assert reader is not None
        if record is None or record.value is None or not record.came_after(began):
            return reader, None
        # How long ago nobody knows.
        self._remember(name, value := Fresh(record.value, asked, asked + (record.expires - record.written) * TRUSTED))
        return reader, value

    async def _raise_failure(self, name: str, began: Record, token: int) -> None:
        """Raise the error of the computation that ended while one who came under this token waited, if it was one.

        By the store's own order, and by tokens: an error from before this caller asked, or of one who came after it, is not its own.
        """
        record: Record = await self._engine.ask(lambda until: self._store.kept(name, FAILURE, until))
        if record.value is None or not record.came_after(began) or record.token >= token:
            return
        owner, kind, text = json.loads(record.value)
        raise OnceFailed(name, owner=owner, kind=kind, text=text)

    async def _tell_failure(self, name: str, token: int, problem: Exception) -> None:
        """Note the error for those who wait elsewhere; if that fails too, they compute it themselves."""
        kind = type(problem)
        known = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        told = json.dumps([self._engine.owner, known, str(problem)[:LONGEST_TEXT]]).encode()
        with suppress(LocklineError):
            await self._engine.ask(lambda until: self._store.keep(name, FAILURE, told, token, TOLD_FOR, until))

    async def _compute(
        self, flight: Flight, handle: Handle, wish: Terms, compute: Callable[[Handle], Awaitable[Any]], fresh: float, codec: Codec | None
    ) -> Fresh | None:  # fmt: skip
        """The value, kept; None if a newer holder has come meanwhile, whose value counts."""
        name, token = wish.name, handle.token
        try:
            data = encode(name, await compute(handle), codec, self._largest)
        except Exception as problem:
            flight.failure = problem
            if handle.valid:  # else another one may be at it, and nobody waits for this one any more
                await self._tell_failure(name, token, problem)
            raise
        sent = self._engine.runtime.now()
        if not await self._engine.ask(lambda by: self._store.keep(name, WHAT, data, token, fresh, by), rest_of(handle)):
            return None
        if isinstance(self._store, AskedForTime):
            # By such a time others may take it for over sooner than we would.
            return Fresh(data, sent, sent)
        self._remember(name, made := Fresh(data, sent, sent + fresh * TRUSTED))
        return made

    async def _leave(self, handle: Handle) -> None:
        with suppress(LocklineError):  # the value is kept, or not: that this lease was lost changes nothing
            await self._engine.release(handle)

    async def _look(self, name: str, fresh: float, token: int = 0) -> SeenValue:
        """The value that is kept, if it is fresh enough; with a token, no older holder writes from now on."""
        sent = self._engine.runtime.now()
        marked = max(MARKED, fresh)
        record: Record = await self._engine.ask(lambda until: self._store.kept(name, WHAT, until, token, marked))
        if record.value is None or record.now - record.written >= fresh:
            return SeenValue(None, record)
        # As late as it may be there: nobody shall have it in mind any more when another one begins to make a newer.
        latest = record.now + record.doubt
        born, left = sent - (latest - record.written), record.expires - latest
        self._remember(name, value := Fresh(record.value, born, sent + left * TRUSTED))
        return SeenValue(value, record)

    def _remember(self, name: str, seen: Fresh) -> None:
        if self._size > ROOM:
            self._seen, self._size = {}, 0
        self._size += len(seen.data) + len(name) + BESIDES
        self._seen[name] = seen


def flights_of(client: object, engine: Engine) -> Flights:
    """The flights of this client, made when they are first asked for; of two threads that come first, both get the same."""
    mine: dict[str, Any] = vars(client)
    found = mine.get("_flights")
    return found if found is not None else mine.setdefault("_flights", Flights(engine))  # type: ignore[no-any-return]


def a_maker(make: object, *, awaited: bool) -> None:
    """ConfigError for what this shell cannot call."""
    if not callable(make):
        raise ConfigError(f"once() takes a function that makes the value, not {make!r}")
    gives = gives_instead(make)
    if "generator" in gives or (gives and not awaited):
        raise ConfigError(
            f"this client cannot make a value of what gives {gives}; use a client of lockline.aio for coroutines"
        )


def _written(live: Any) -> Handle:
    return Handle(live, writes=True)


def _read(live: Any) -> Handle:
    return Handle(live, writes=False)
