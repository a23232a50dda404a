"""Parties: threads or tasks that do what a test tells them, so that one test text serves both flavours.

A test is blocking Python. `alice.lock("x").acquire()` is carried to Alice, who is a thread (sync) or a task on an event
loop in a background thread (asyncio); she runs it there, awaits it if it is to be awaited, and the answer comes back.
Because Alice is one thread or one task for her whole life, re-entrancy, `with` blocks and "the thread has ended" work.

    lease = alice.lock("x", ttl=1).acquire()            # do it and wait for the answer
    pending = bob.lock("x").acquire.start(timeout=5)    # begin it ...
    lease = pending.result()                            # ... and take the answer later
    with alice.lock("x") as lease: ...                  # `with`, or `async with`, inside Alice
    lease.given_to(bob).release()                       # the same lease in other hands
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import lockline
import lockline.kit.aio
from lockline import aio, kit, sync

from ..calm import calm

STUCK = 120.0
"""A call that has not come back by then is stuck. Against hanging alone: no story is about so long a time."""
LONG = 600.0
"""The ttl of every lock whose ttl is not the story: longer than any test waits for anything, so that nothing happens because it expired."""

_WRAPPED = (
    sync.Client, sync.Lock, sync.RWLock, sync.Lease, sync.Lost,
    aio.Client, aio.Lock, aio.RWLock, aio.Lease, aio.Lost,
    kit.sync.Leases, kit.sync.Locks, kit.sync.LostTogether, kit.sync.Pool, kit.aio.Pool, kit.aio.Leases, kit.aio.Locks, kit.aio.LostTogether,
)  # fmt: skip


class Work:
    """One thing to do, and where its outcome goes."""

    def __init__(self, do: Callable[[], Any]) -> None:
        self.do = do
        self.outcome: Future[Any] = Future()


class Enter(Work):
    """Enter a `with` block; what follows is done inside it until `Exit`."""


class Exit(Work):
    """Leave the innermost `with` block, by this error if there is one."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__(lambda: None)
        self.error = error


class End(Work):
    """The party goes home."""


class Pending:
    """Something that a party is at, or was."""

    def __init__(self, party: Party, work: Work) -> None:
        self._party = party
        self._work = work

    @property
    def done(self) -> bool:
        """Whether it has come back."""
        return self._work.outcome.done()

    def result(self, timeout: float = STUCK) -> Any:
        """What came back; an AssertionError if nothing did in time."""
        outcome = self._work.outcome
        until = calm() + timeout
        while not outcome.done() and (left := until - calm()) > 0:
            futures.wait([outcome], left)
        if not outcome.done():
            raise AssertionError(f"{self._party.name} did not come back within {timeout} s")
        return self._party._face(outcome.result())

    def cancel(self) -> None:
        """asyncio: cancel what the party is at."""
        self._party.cancel(self._work)


class Call:
    """A method of something in a party's hands."""

    def __init__(self, party: Party, method: Callable[..., Any]) -> None:
        self._party = party
        self._method = method

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.start(*args, **options).result()

    def start(self, *args: Any, **options: Any) -> Pending:
        """Begin it; the answer is taken later."""
        return self._party.begin(lambda: self._method(*args, **options))


class Face:
    """A client, lock or lease in a party's hands: its methods are run by the party."""

    def __init__(self, party: Party, real: Any) -> None:
        self.party = party
        self.real = real

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.real, name)
        if inspect.ismethod(value) or inspect.isfunction(value):
            return Call(self.party, value)
        return self.party._face(value)

    def given_to(self, party: Party) -> Face:
        """The same thing in other hands."""
        return Face(party, self.real)

    def __enter__(self) -> Any:
        work = Enter(lambda: self.real)
        self.party.tell(work)
        return Pending(self.party, work).result()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        work = Exit(error)
        self.party.tell(work)
        try:
            Pending(self.party, work).result()
        except BaseException as outcome:
            if outcome is error:
                return False
            raise
        return error is not None

    def __repr__(self) -> str:
        return f"<{self.party.name}'s {self.real!r}>"


class Party:
    """One thread or one task with a client."""

    flavour: str

    def __init__(self, name: str) -> None:
        self.name = name
        self.client: Any = None

    def lock(self, name: Any, ttl: Any = LONG, **options: Any) -> Face:
        return self._face(self.client.real.lock(name, ttl=ttl, **options))  # type: ignore[no-any-return]

    def locks(self, *names: Any, ttl: Any = LONG, **options: Any) -> Face:
        return self._face(self.client.real.locks(*names, ttl=ttl, **options))  # type: ignore[no-any-return]

    def pool(self, name: Any, items: Any, ttl: Any = LONG, **options: Any) -> Face:
        return self._face(self.client.real.pool(name, items, ttl=ttl, **options))  # type: ignore[no-any-return]

    def rlock(self, name: Any, ttl: Any = LONG, **options: Any) -> Face:
        return self._face(self.client.real.rlock(name, ttl=ttl, **options))  # type: ignore[no-any-return]

    def rwlock(self, name: Any, ttl: Any = LONG, **options: Any) -> Face:
        return self._face(self.client.real.rwlock(name, ttl=ttl, **options))  # type: ignore[no-any-return]

    def semaphore(self, name: Any, limit: Any, ttl: Any = LONG, **options: Any) -> Face:
        return self._face(self.client.real.semaphore(name, limit, ttl=ttl, **options))  # type: ignore[no-any-return]

    def read(self, name: Any, ttl: Any = LONG, **options: Any) -> Face:
        return self._face(self.client.real.rwlock(name, ttl=ttl, **options).read())  # type: ignore[no-any-return]

    def write(self, name: Any, ttl: Any = LONG, **options: Any) -> Face:
        return self._face(self.client.real.rwlock(name, ttl=ttl, **options).write())  # type: ignore[no-any-return]

    def do(self, work: Callable[[], Any]) -> Any:
        """Have the party call this (and await what it returns, in asyncio)."""
        return self.begin(work).result()

    def begin(self, work: Callable[[], Any]) -> Pending:
        """Have the party begin this."""
        order = Work(work)
        self.tell(order)
        return Pending(self, order)

    def end(self) -> None:
        """The thread or task returns and is no more."""
        order = End(lambda: None)
        self.tell(order)
        Pending(self, order).result()
        self.join()

    @property
    def me(self) -> Any:
        """The thread or task itself."""
        raise NotImplementedError

    def tell(self, work: Work) -> None:
        raise NotImplementedError

    def cancel(self, work: Work) -> None:
        raise NotImplementedError

    def join(self) -> None:
        raise NotImplementedError

    def _face(self, value: Any) -> Any:
        return Face(self, value) if isinstance(value, _WRAPPED) else value


class ThreadParty(Party):
    """A thread."""

    flavour = "sync"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._inbox: queue.SimpleQueue[Work] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._live, name=f"party-{name}", daemon=True)
        self._thread.start()

    @property
    def me(self) -> threading.Thread:
        return self._thread

    def tell(self, work: Work) -> None:
        self._inbox.put(work)

    def join(self) -> None:
        self._thread.join(STUCK)
        assert not self._thread.is_alive()

    def _live(self) -> None:
        ended = self._serve()
        ended.outcome.set_result(None)

    def _serve(self) -> Work:
        while True:
            work = self._inbox.get()
            if isinstance(work, (Exit, End)):
                return work
            if isinstance(work, Enter):
                self._inside(work)
            else:
                _settle(work)
            # Nothing of the last step is kept, so that a lease the test lets go of is really gone.
            del work

    def _inside(self, work: Work) -> None:
        leave: Exit | None = None
        try:
            with work.do() as value:
                work.outcome.set_result(value)
                del value
                leave = self._serve()  # type: ignore[assignment]
                assert isinstance(leave, Exit)
                if leave.error is not None:
                    raise leave.error
        except BaseException as error:
            (leave or work).outcome.set_exception(error)
        else:
            assert leave is not None
            leave.outcome.set_result(None)


def _settle(work: Work) -> None:
    try:
        value = work.do()
    except BaseException as error:
        work.outcome.set_exception(error)
    else:
        work.outcome.set_result(value)


class TaskParty(Party):
    """A task on the loop of the test."""

    flavour = "asyncio"

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name)
        self._loop = loop
        self._current: Work | None = None

        async def begin() -> None:
            self._inbox: asyncio.Queue[Work] = asyncio.Queue()
            self._task = asyncio.create_task(self._live(), name=f"party-{name}")

        asyncio.run_coroutine_threadsafe(begin(), loop).result(STUCK)

    @property
    def me(self) -> asyncio.Task[None]:
        return self._task

    def tell(self, work: Work) -> None:
        self._loop.call_soon_threadsafe(self._inbox.put_nowait, work)

    def cancel(self, work: Work) -> None:
        def cancel() -> None:
            if self._current is work:
                self._task.cancel()

        self._loop.call_soon_threadsafe(cancel)

    def join(self) -> None:
        async def join() -> None:
            await asyncio.wait([self._task], timeout=STUCK)

        asyncio.run_coroutine_threadsafe(join(), self._loop).result(STUCK)
        assert self._task.done()

    async def _live(self) -> None:
        ended = await self._serve()
        ended.outcome.set_result(None)

    async def _serve(self) -> Work:
        while True:
            work = await self._inbox.get()
            if isinstance(work, (Exit, End)):
                return work
            if isinstance(work, Enter):
                await self._inside(work)
            else:
                await self._settle(work)
            del work

    async def _inside(self, work: Work) -> None:
        leave: Exit | None = None
        entered = False
        try:
            async with work.do() as value:
                entered = True
                work.outcome.set_result(value)
                del value
                leave = await self._serve()  # type: ignore[assignment]
                assert isinstance(leave, Exit)
                if leave.error is not None:
                    raise leave.error
        except BaseException as error:
            if not entered:
                work.outcome.set_exception(error)
                return
            if leave is None:
                # The body was cancelled, because the lease was lost: the test hears of it when it leaves the block.
                leave = await self._serve()  # type: ignore[assignment]
            leave.outcome.set_exception(error)  # type: ignore[union-attr]
        else:
            assert leave is not None
            leave.outcome.set_result(None)

    async def _settle(self, work: Work) -> None:
        self._current = work
        try:
            value = work.do()
            if inspect.isawaitable(value):
                value = await value
        except BaseException as error:
            while self._task.cancelling():
                self._task.uncancel()
            work.outcome.set_exception(error)
        else:
            work.outcome.set_result(value)
        finally:
            self._current = None


def connect(flavour: str, target: Any, **options: Any) -> Any:
    """A client of this flavour."""
    return lockline.connect(target, **options) if flavour == "sync" else aio.connect(target, **options)
