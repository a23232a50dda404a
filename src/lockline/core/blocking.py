"""The blocking runtime: coroutines that never suspend, run to their end in the calling thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

from . import clock

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    coroutine.close()
    raise RuntimeError("a blocking port suspended; it must not await anything that does")


class BlockingSignal:
    """A `threading.Event` with a deadline on Lockline's clock."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, until: float | None) -> bool:
        # One long wait would follow CLOCK_MONOTONIC, which stops in suspend: wait in pieces and look at ours.
        while not self._event.is_set():
            left = 60.0 if until is None else until - clock.now()
            if left <= 0:
                return False
            self._event.wait(min(left, 60.0))
        return True


class _Slot:
    __slots__ = ("event", "mail")

    def __init__(self) -> None:
        self.event = threading.Event()
        self.mail = False


class BlockingMailbox:
    """Leader and followers: one waiting thread reads for all and hands on what is not its own.

    A thread that reads its own hint saves the switch from a listener thread, which costs more than the read.
    """

    def __init__(
        self,
        receive: Callable[[float], list[str]] | None = None,
        nudge: Callable[[], None] | None = None,
        stray: Callable[[], None] | None = None,
    ) -> None:
        self._stray = stray
        self._receive = receive
        self._nudge = nudge
        self._slots: dict[str, _Slot] = {}
        self._mutex = threading.Lock()
        self._leader: _Slot | None = None

    def open(self, key: str) -> None:
        self._slots.setdefault(key, _Slot())

    def close(self, key: str) -> None:
        self._slots.pop(key, None)
        # This slot may have been named the next leader: name another, or nobody would read.
        if self._slots and self._leader is None and self._receive is not None:
            self._resign()

    def deliver(self, key: str) -> bool:
        slot = self._slots.get(key)
        if slot is None:
            if self._stray is not None:
                self._stray()
            return False
        slot.mail = True
        slot.event.set()
        # The leader sits in `receive`, not on its event: a hint from another thread has to get it out of there.
        if slot is self._leader and self._nudge is not None:
            self._nudge()
        return True

    def deliver_all(self) -> None:
        for key in list(self._slots):
            self.deliver(key)

    async def wait(self, key: str, until: float) -> bool:
        slot = self._slots[key]
        while not slot.mail:
            left = until - clock.now()
            if left <= 0:
                return False
            if self._receive is None or not self._lead(slot):
                slot.event.wait(min(left, 60.0))
                slot.event.clear()
                continue
            try:
                while not slot.mail and left > 0:
                    for told in self._receive(left):
                        if told == key:
                            slot.mail = True
                        else:
                            self.deliver(told)
                    left = until - clock.now()
            finally:
                self._resign()
        slot.mail = False
        slot.event.clear()
        return True

    def _lead(self, slot: _Slot) -> bool:
        with self._mutex:
            if self._leader is not None:
                return False
            self._leader = slot
            return True

    def _resign(self) -> None:
        with self._mutex:
            leader, self._leader = self._leader, None
            # Any follower will do: woken without mail, it finds the place free and takes it.
            for slot in list(self._slots.values()):
                if slot is not leader and not slot.event.is_set():
                    slot.event.set()
                    break


class ThreadWorker:
    """A daemon thread."""

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread

    def alive(self) -> bool:
        return self._thread.is_alive()

    async def join(self, until: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, until - clock.now()))


def _ignore() -> None:
    """Until a keeper is there, nobody cares for strays."""


class BlockingRuntime:
    """Threads and real time."""

    flavour: Literal["blocking"] = "blocking"
    now = staticmethod(clock.now)
    me = staticmethod(threading.current_thread)
    on_stray: Callable[[], None] = staticmethod(_ignore)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this is the pair of `await asyncio.sleep(seconds)`

    def mutex(self) -> AbstractContextManager[object]:
        return threading.Lock()

    def signal(self) -> BlockingSignal:
        return BlockingSignal()

    def mailbox(
        self,
        receive: Callable[[float], list[str]] | None = None,
        nudge: Callable[[], None] | None = None,
    ) -> BlockingMailbox:
        return BlockingMailbox(receive, nudge, lambda: self.on_stray())

    def spawn(self, work: Callable[[], Awaitable[None]], name: str) -> ThreadWorker:
        def body() -> None:
            run(work())  # type: ignore[arg-type]

        thread = threading.Thread(target=body, name=name, daemon=True)
        thread.start()
        return ThreadWorker(thread)

    def ended(self, me: object) -> bool:
        return isinstance(me, threading.Thread) and not me.is_alive()

    def outcome(self, me: object) -> object:
        return None
