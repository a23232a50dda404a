"""The asyncio runtime: the same core, on one event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

from ..errors import ConfigError
from . import Reader, clock
from .alarm import LONGEST, Alarm, settle
from .awaiting import waits_for
from .fork import tell_after_fork

T = TypeVar("T")


class LoopSignal:
    """An `asyncio.Event` that any thread may set."""

    __slots__ = ("_flag", "_loop", "_waiters")

    def __init__(self) -> None:
        self._flag = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        self._flag = True
        loop = self._loop
        if loop is None or not self._waiters:
            return
        if _running_loop() is loop:
            self._wake()
        elif not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, until: float | None) -> bool:
        self._loop = loop = asyncio.get_running_loop()
        while not self._flag:
            left = None if until is None else until - clock.now()
            if left is not None and left <= 0:
                return False
            waiter = loop.create_future()
            self._waiters.add(waiter)
            # The loop's clock stops in suspend: wake at times and look at ours.
            timer = loop.call_later(LONGEST if left is None else min(left, LONGEST), settle, waiter)
            try:
                # Set by another thread between the look above and the registration.
                if not self._flag:
                    await waiter
            finally:
                timer.cancel()
                self._waiters.discard(waiter)
        return True


async def stay_cancelled(call: Awaitable[T]) -> T:
    """What the call of a library gives, and cancelled if cancelled meanwhile.

    Before Python 3.12 `asyncio.wait_for`, which libraries use, swallows a cancel that comes together with its result.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await call
    except asyncio.CancelledError:
        if task.cancelling():
            raise
        # Not we: a task that the library runs for us, by somebody who cancels every task that he finds.
        raise ConnectionAbortedError("cancelled by somebody else") from None
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class _TaskSlot:
    """One waiting claim: whether a hint lies there, whether its wait is over, and what its task sleeps on."""

    __slots__ = ("mail", "waiter", "woken")

    def __init__(self) -> None:
        self.mail = self.woken = False
        self.waiter: asyncio.Future[None] | None = None

    def put(self) -> None:
        """From any thread."""
        self.mail = True
        self.ring()

    def ring(self) -> None:
        """From any thread, once there is something to be seen."""
        waiter = self.waiter
        if waiter is None or waiter.done():
            return
        loop = waiter.get_loop()
        if _running_loop() is loop:
            settle(waiter)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(settle, waiter)


class LoopMailbox:
    """One slot per waiting claim; the backend's reader delivers."""

    def __init__(self, stray: Callable[[str], None]) -> None:
        self._slots: dict[str, _TaskSlot] = {}
        self._stray = stray
        self._alarm: Alarm | None = None

    def open(self, key: str) -> None:
        if key not in self._slots:
            self._slots.setdefault(key, _TaskSlot())

    def is_open(self, key: str) -> bool:
        return key in self._slots

    def close(self, key: str) -> bool:
        slot = self._slots.pop(key, None)
        return slot is not None and slot.mail

    def deliver(self, key: str) -> None:
        slot = self._slots.get(key)
        if slot is None:
            self._stray(key)
        else:
            slot.put()

    def deliver_all(self) -> None:
        for slot in list(self._slots.values()):
            slot.put()

    def wake(self, key: str) -> None:
        slot = self._slots.get(key)
        if slot is not None:
            slot.woken = True
            slot.ring()

    async def wait(self, key: str, until: float) -> bool:
        slot = self._slots[key]
        if slot.mail:
            # Here before it was waited for, in one packet with the answers to others perhaps: these stand behind it when it goes
            # on, and one of them is its heir.
            await asyncio.sleep(0)
        alarm = self._alarm
        while not (slot.mail or slot.woken):
            now = clock.now()
            if until <= now:
                return False
            if alarm is None or alarm.loop is not asyncio.get_running_loop():
                alarm = self._alarm = Alarm(asyncio.get_running_loop())
            slot.waiter = waiter = alarm.loop.create_future()
            try:
                alarm.wake(waiter, until, now)
                # Put by another thread between the look above and the registration.
                if not (slot.mail or slot.woken):
                    await waiter
            finally:
                slot.waiter = None
        if not slot.woken:
            slot.mail = False
        return True


AGAIN = 0.05
"""How long a lasting task that was cancelled stays away: a loop that is being shut down is gone by then, mostly."""


class TaskWorker:
    """A background task."""

    def __init__(self, begin: Callable[[], asyncio.Task[None]], lasting: bool) -> None:
        self._begin = begin
        self._lasting = lasting
        self._again: asyncio.TimerHandle | None = None
        self._start()

    def _start(self) -> None:
        self._again = None
        self._task = self._begin()
        if self._lasting:
            # Begun while its loop goes down, it ends with it, and nobody has to hear of that.
            self._task._log_destroy_pending = False  # type: ignore[attr-defined]
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        loop, problem = task.get_loop(), None if task.cancelled() else task.exception()
        if problem is not None:
            loop.call_exception_handler(
                {"message": "a background task of Lockline ended", "exception": problem, "task": task}
            )
        if self._lasting and (task.cancelled() or problem is not None):
            # Not by us: many a program cancels every task but its own, and what a signal handler raises ends the task that it strikes.
            # A timer is no task, so it is not cancelled with them.
            self._again = loop.call_later(AGAIN, self._start)

    def alive(self) -> bool:
        return self._again is not None or not self._task.done()

    async def join(self, until: float) -> None:
        self._lasting = False
        if self._again is not None:
            self._again.cancel()
            self._again = None
        if self._task is asyncio.current_task() or self._task.done():
            return
        _, busy = await asyncio.wait([self._task], timeout=max(0.0, until - clock.now()))
        if busy:
            self._task.cancel()


class _Open:
    """Where there is one thread only, nobody has to wait outside."""

    __slots__ = ()

    def __call__(self, work: Callable[..., T], *args: Any) -> T:
        return work(*args)

    def entered(self) -> bool:
        return False


class LoopRuntime:
    """One event loop; a client belongs to the loop that it was first used on."""

    flavour: Literal["asyncio"] = "asyncio"
    now = staticmethod(clock.now)
    wall = staticmethod(time.time)
    who = staticmethod(clock.who)

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        """What runs in the background; a loop alone does not keep its tasks alive."""
        tell_after_fork(self)

    def forked(self) -> None:
        """A child has to make itself a new loop: the old one's selector is the parent's."""
        self._loop = None
        self._tasks = set()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def section(self) -> _Open:
        return _Open()

    def signal(self) -> LoopSignal:
        return LoopSignal()

    def mailbox(self, stray: Callable[[str], None], reader: Reader | None) -> LoopMailbox:
        return LoopMailbox(stray)

    def call_aside(self, callback: Callable[[], object]) -> None:
        callback()

    def here(self, callback: Callable[..., object]) -> Callable[..., object]:
        return callback

    def spawn(self, work: Callable[[], Awaitable[None]], name: str, *, lasting: bool = False) -> TaskWorker:
        loop = asyncio.get_running_loop()

        def begin() -> asyncio.Task[None]:
            task: asyncio.Task[None] = loop.create_task(work(), name=name)  # type: ignore[arg-type]
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return task

        return TaskWorker(begin, lasting)

    def me(self) -> object:
        task = asyncio.current_task()
        loop = task.get_loop() if task is not None else _running_loop()
        if self._loop is None:
            self._loop = loop
        elif loop is not self._loop:
            raise ConfigError("this asyncio client was first used on another event loop; connect one client per loop")
        return task

    def waits_for(self, other: object, me: object) -> bool:
        return waits_for(other, me)

    def ended(self, me: object) -> bool:
        return isinstance(me, asyncio.Task) and me.done()

    def outcome(self, me: object) -> object:
        if not isinstance(me, asyncio.Task) or not me.done() or me.cancelled() or me.exception():
            return None
        return me.result()
