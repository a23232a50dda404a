"""The blocking runtime: coroutines that never suspend, run to their end in the calling thread."""

from __future__ import annotations

import sys
import threading
import time
from _thread import LockType, allocate_lock, get_ident, start_new_thread
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal, TypeVar

from ..errors import ConfigError
from . import Reader, clock
from .aside import Aside
from .fork import tell_after_fork
from .section import Section

T = TypeVar("T")

NET = 2.0
"""The longest sleep without a look round: an exception that strikes one thread may cost another its wake-up, once."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a blocking port suspended; it must not await anything that does")


def ring(gate: LockType) -> None:
    """Wake the one who sleeps on this lock, now or when it next lies down."""
    try:
        gate.release()
    except RuntimeError:
        pass  # it has been woken already


class BlockingSignal:
    """A flag that can be waited for, with a deadline on Lockline's clock.

    No `threading.Event`: that is a lock taken and given back in Python, and an exception in between leaves it taken for ever.
    Here each waiter sleeps on a lock of its own, and every change is one instruction that either happened or did not.
    """

    __slots__ = ("_set", "_sleeping")

    def __init__(self) -> None:
        self._set = False
        self._sleeping: deque[LockType] = deque()

    def set(self) -> None:
        self._set = True
        while self._sleeping:
            try:
                gate = self._sleeping[0]
                ring(gate)
                # After the ring: whoever is cut in between and tries again finds it once more.
                self._sleeping.remove(gate)
            except (IndexError, ValueError):
                pass  # another thread sets it too, or the sleeper has got up

    def clear(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        return self._set

    async def wait(self, until: float | None) -> bool:
        if self._set:
            return True
        gate = allocate_lock()
        gate.acquire()
        # Before the look at the flag: whoever sets it from here on finds us.
        self._sleeping.append(gate)
        try:
            while not self._set:
                # One long wait would follow CLOCK_MONOTONIC, which stops in suspend: wait in pieces and look at ours.
                left = NET if until is None else until - clock.now()
                if left <= 0:
                    return False
                if gate.acquire(True, min(left, NET)):
                    # Called, and so no longer among those who sleep; if the flag was taken back meanwhile, sleep again.
                    self._sleeping.append(gate)
            return True
        finally:
            try:
                self._sleeping.remove(gate)
            except ValueError:
                pass


class _Slot:
    """One waiting claim: whether a hint lies there, whether its wait is over, and the lock that its thread sleeps on, once it has to."""

    __slots__ = ("gate", "mail", "woken")

    def __init__(self) -> None:
        self.gate: LockType | None = None
        self.mail = self.woken = False

    def ring(self) -> None:
        # Whoever has no lock yet looks for mail, and for somebody who leads, after it has made one.
        if self.gate is not None:
            ring(self.gate)

    def make_gate(self) -> None:
        gate = allocate_lock()
        gate.acquire()
        self.gate = gate


class BlockingMailbox:
    """Leader and followers: one waiting thread reads for all and hands on what is not its own.

    A thread that reads its own hint saves the switch from a listener thread, which costs more than the read. Who leads does so until
    its own wait is over; then whoever came last takes over, because its turn comes last, mostly: one whose turn comes next would have
    to be got out of its read, and find a successor, each time that a turn is handed on inside. Nobody is appointed: to lead is to be
    in the section, which the interpreter itself ends, so no exception can leave the post with one who is gone.
    """

    def __init__(
        self,
        stray: Callable[[str], None],
        receive: Callable[[float], list[str]] | None = None,
        nudge: Callable[[], None] | None = None,
    ) -> None:
        self._stray = stray
        self._receive = receive
        self._nudge = nudge
        self._slots: dict[str, _Slot] = {}
        self._waiting: OrderedDict[_Slot, None] = OrderedDict()
        self._leading = Section()
        self._leader: _Slot | None = None
        """Who sits in `receive`, or is about to."""

    def open(self, key: str) -> None:
        if key not in self._slots:
            self._slots.setdefault(key, _Slot())

    def is_open(self, key: str) -> bool:
        return key in self._slots

    def close(self, key: str) -> bool:
        slot = self._slots.pop(key, None)
        if slot is None:
            return False
        # One whose wait was cut short may still stand there.
        if slot in self._waiting:
            self._step_down(slot)
        return slot.mail

    def deliver(self, key: str) -> None:
        slot = self._slots.get(key)
        if slot is None:
            self._stray(key)
            return
        slot.mail = True
        self._ring(slot)

    def wake(self, key: str) -> None:
        slot = self._slots.get(key)
        if slot is not None:
            slot.woken = True
            self._ring(slot)

    def _ring(self, slot: _Slot) -> None:
        slot.ring()
        # The leader sits in `receive`, not on its gate: a hint from another thread has to get it out of there.
        if self._nudge is not None and slot is self._leader:
            self._nudge()

    def deliver_all(self) -> None:
        for key in list(self._slots):
            self.deliver(key)

    async def wait(self, key: str, until: float) -> bool:
        slot = self._slots[key]
        try:
            if self._receive is not None:
                self._waiting[slot] = None
            while not (slot.mail or slot.woken):
                left = until - clock.now()
                if left <= 0:
                    return False
                if self._receive is not None and self._leading.attempt(self._lead, self._receive, left, key, slot):
                    continue
                if slot.gate is None:
                    slot.make_gate()
                else:
                    slot.gate.acquire(True, min(left, NET))
        finally:
            if self._receive is not None:
                self._step_down(slot)
        if not slot.woken:
            slot.mail = False
        return True

    def _lead(self, receive: Callable[[float], list[str]], seconds: float, key: str, slot: _Slot) -> None:
        # Before the look: whoever delivers from here on knows where to find us.
        self._leader = slot
        try:
            if slot.mail or slot.woken:
                return
            for told in receive(seconds):
                if told == key:
                    slot.mail = True
                else:
                    self.deliver(told)
        except BaseException:
            # What had been read, and for whom, nobody knows any more: let everybody look.
            self.deliver_all()
            raise
        finally:
            self._leader = None

    def _step_down(self, slot: _Slot) -> None:
        self._waiting.pop(slot, None)
        # Woken without mail, it finds that nobody leads. Mostly nobody else waits, and this is on the way of every turn that is told.
        if self._waiting and self._leader is None and (heir := self._newest()) is not None:
            heir.ring()

    def _newest(self) -> _Slot | None:
        return undisturbed(lambda: next(reversed(self._waiting), None))


def undisturbed(look: Callable[[], T]) -> T:
    """What a look at a dictionary gives that others change: again, if that was between two calls of ours."""
    while True:
        try:
            return look()
        except RuntimeError as problem:
            if type(problem) is not RuntimeError:
                raise  # a limit of the caller's own, by a signal handler


class ThreadWorker:
    """A daemon thread, from the order to start it until its work is over."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self._work = work
        self._name = name
        self._thread: threading.Thread | None = None
        self._begun = allocate_lock()
        self._begun.acquire()
        self._over = allocate_lock()
        self._over.acquire()
        self._refused: RuntimeError | None = None

    def start(self) -> None:
        """Have it begin; RuntimeError where no thread is to be had."""
        # `Thread.start` waits for an Event that the new thread sets; an exception in there would take the new thread down
        # with it. So a bare thread, which is started in one instruction and which no signal reaches, does it for us.
        start_new_thread(self._launch, ())
        self._begun.acquire(True, 1.0)
        if self._refused is not None:
            raise RuntimeError(f"no thread for {self._name}: {self._refused}")

    def _launch(self) -> None:
        self._thread = threading.Thread(target=self._body, name=self._name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as problem:
            self._refused = problem
            self._over.release()
        finally:
            self._begun.release()

    def _body(self) -> None:
        try:
            self._work()
        finally:
            self._over.release()

    def alive(self) -> bool:
        return self._over.locked()

    async def join(self, until: float) -> None:
        thread = self._thread
        if thread is None or thread.ident == get_ident() or not self._over.acquire(True, max(0.0, until - clock.now())):
            return
        self._over.release()
        # Nothing is left for it to do but to end.
        thread.join(max(0.0, until - clock.now()))


def refuse_green_threads() -> None:
    """ConfigError where gevent or eventlet has put its own threads and sockets in the place of the real ones.

    Deadlines are kept by the kernel's clock and its timeouts on sockets, renewal by a thread that runs while others block;
    a patched process has neither, and would lose leases without a word.
    """
    for library, module, asks in (
        ("gevent", "gevent.monkey", "is_module_patched"),
        ("eventlet", "eventlet.patcher", "is_monkey_patched"),
    ):
        patched = getattr(sys.modules.get(module), asks, None)
        if patched is not None and any(patched(name) for name in ("socket", "thread", "threading", "select")):
            raise ConfigError(
                f"{library} has patched this process, and a lease cannot be kept there: run it with threads or asyncio workers, "
                "or take the lock in a process of its own (lockline run)"
            )


class BlockingRuntime:
    """Threads and real time."""

    flavour: Literal["blocking"] = "blocking"
    now = staticmethod(clock.now)
    wall = staticmethod(time.time)
    who = staticmethod(clock.who)
    me = staticmethod(threading.current_thread)

    def __init__(self) -> None:
        self.forked()
        tell_after_fork(self)

    def forked(self) -> None:
        """Threads of the parent do not exist in a child."""
        self._aside = Aside()

    async def sleep(self, seconds: float) -> None:
        # Other threads have their turn unasked: to offer it would mean to wait, behind a busy one, for a whole slice of its time.
        if seconds > 0:
            time.sleep(seconds)  # noqa: ASYNC251 - this is the pair of `await asyncio.sleep(seconds)`

    def section(self) -> Section:
        return Section()

    def signal(self) -> BlockingSignal:
        return BlockingSignal()

    def mailbox(self, stray: Callable[[str], None], reader: Reader | None) -> BlockingMailbox:
        if reader is None:
            return BlockingMailbox(stray)
        return BlockingMailbox(stray, reader.receive, reader.nudge)

    def call_aside(self, callback: Callable[[], object]) -> None:
        # By a bare thread, which is started in one instruction and which no signal reaches: `run` takes a mutex.
        start_new_thread(self._aside.run, (callback,))

    def here(self, callback: Callable[..., object]) -> Callable[..., object]:
        return callback

    def spawn(self, work: Callable[[], Awaitable[None]], name: str, *, lasting: bool = False) -> ThreadWorker:
        def body() -> None:
            run(work())  # type: ignore[arg-type]

        worker = ThreadWorker(body, name)
        worker.start()
        return worker

    def waits_for(self, other: object, me: object) -> bool:
        return False

    def ended(self, me: object) -> bool:
        return isinstance(me, threading.Thread) and not me.is_alive()

    def outcome(self, me: object) -> object:
        return None
