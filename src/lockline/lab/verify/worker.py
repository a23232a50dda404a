"""One worker process: a few threads or tasks that lock, write to the registers, and write down what they were told.

    python -m lockline.lab.verify.worker      its settings come as the first line of stdin, orders as the lines after it

Orders: `stop`, `freeze` (stop yourself at the next hold, between the check and the write), `die` (kill yourself there),
`die waiting` (kill yourself while you stand in a line), `clock SECONDS` (be so far off from now on). The end of stdin is the end of the worker: whoever started it is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import inspect
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lockline
from lockline import aio
from lockline.core.claim import WHOLE
from lockline.errors import AcquireTimeout, LeaseLost, LocklineError
from lockline.runtime.blocking import BlockingRuntime, run
from lockline.runtime.clock import now
from lockline.runtime.looping import LoopRuntime

from .history import Pen
from .plan import DEADLINE_TTL, LIMIT, Dice, Settings, Step
from .registers import Fenced, Unfenced

LOOK_EVERY = 0.004
"""Seconds between two looks at a lease whose deadline comes."""
IN_LINE = 0.05
"""Whoever has waited so long for its turn stands in a line."""
STANDS_WITHIN = 1.5
"""So long somebody is looked for who does; shorter than `crew.STANDS_STILL_WITHIN`."""
AFTER_A_REFUSAL = 0.05
"""A store that answers no at once is not asked again at once."""
WEIGHTS = {"lock": (1, 1), "write": (WHOLE, WHOLE), "read": (1, WHOLE), "permit": (1, LIMIT)}
"""What each kind of hold weighs in its line, and how much there is room for."""


class Orders:
    """What the one who started us wants."""

    def __init__(self, settings: Settings) -> None:
        self._ends = settings.ends
        self._stopped = False
        self._strike = ""
        self._offset = 0.0
        self._waiting: dict[int, float] = {}
        """Since when each party waits for its turn."""

    def listen(self) -> None:
        """Follow the lines of stdin, in a thread of its own."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word == "stop":
                self._stopped = True
            elif word == "clock":
                self._offset = float(rest)
            elif rest == "waiting":
                self._die_waiting()
            else:
                self._strike = word
        os._exit(3)

    @property
    def over(self) -> bool:
        """Whether to begin nothing new."""
        return self._stopped or now() >= self._ends

    def _die_waiting(self) -> None:
        """Now, or as soon as one of us stands in a line; never, if that takes too long."""
        until = now() + STANDS_WITHIN
        while now() < until:
            if any(now() - since > IN_LINE for since in list(self._waiting.values())):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.005)

    @contextlib.contextmanager
    def waiting(self, party: int) -> Iterator[None]:
        """This party waits for its turn meanwhile."""
        self._waiting[party] = now()
        try:
            yield
        finally:
            del self._waiting[party]

    def strike(self) -> None:
        """Do to ourselves, here and now, what was ordered: stop or die."""
        word, self._strike = self._strike, ""
        if word == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif word == "die":
            os.kill(os.getpid(), signal.SIGKILL)

    def bend_the_clock(self) -> None:
        """Let this process's wall clock be off by what is ordered: every caller of `time.time` here sees it."""
        real, real_ns = time.time, time.time_ns
        time.time = lambda: real() + self._offset
        time.time_ns = lambda: real_ns() + int(self._offset * 1e9)
        # These have the real one in hand already.
        for runtime in (BlockingRuntime, LoopRuntime):
            runtime.wall = staticmethod(time.time)


async def outcome(of: Any) -> Any:
    """What a call of either flavour gives."""
    return await of if inspect.isawaitable(of) else of


class Party:
    """One thread or task of the worker."""

    def __init__(
        self, client: Any, settings: Settings, number: int, pen: Pen, orders: Orders, sleep: Callable[[float], Any]
    ) -> None:
        self._client = client
        self._settings = settings
        self._number = number
        self._pen = pen
        self._orders = orders
        self._sleep = sleep
        self._dice = Dice(settings, number)
        self._registers: dict[str, tuple[Fenced, Unfenced]] = {}
        self._count = 0

    async def work(self) -> None:
        """One operation after the other, to the end."""
        while not self._orders.over:
            step = self._dice.step()
            await self._operate(step)
            await outcome(self._sleep(step.pause))

    def _lock(self, step: Step, op: str) -> Any:
        client, meta = self._client, {"op": op}
        if step.style == "deadline":
            return client.lock(step.name, ttl=DEADLINE_TTL, renew=False, meta=meta)
        ttl = self._settings.ttl if step.style == "short" else self._settings.ttl / 2
        if step.kind == "lock":
            return client.lock(step.name, ttl=ttl, meta=meta)
        if step.kind == "permit":
            return client.semaphore(step.name, limit=LIMIT, ttl=ttl, meta=meta)
        both = client.rwlock(step.name, ttl=ttl, meta=meta)
        return both.read() if step.kind == "read" else both.write()

    async def _operate(self, step: Step) -> None:
        self._count += 1
        note = self._pen.note
        op = f"{self._settings.number}.{self._number}.{self._count}"
        lock = self._lock(step, op)
        weight, capacity = WEIGHTS[step.kind]
        note("a", op, step.name, step.kind, weight, capacity, self._settings.ttl, now())
        try:
            with self._orders.waiting(self._number):
                lease = await outcome(lock.acquire(timeout=self._settings.timeout))
        except AcquireTimeout:
            note("n", op, now())
            return
        except LocklineError:
            note("u", op, now())
            await outcome(self._sleep(AFTER_A_REFUSAL))
            return
        got = now()
        note("g" if lease.valid else "x", op, lease.token, got)
        await self._hold(lease, step, op)
        if not step.lets_go and not lease.valid:
            note("d", op, now(), "lost")
            with contextlib.suppress(LocklineError):
                await outcome(lease.release())
            return
        note("r", op, now())
        try:
            await outcome(lease.release())
        except LeaseLost:
            note("d", op, now(), "lost")
        except LocklineError:
            note("d", op, now(), "unknown")
        else:
            note("d", op, now(), "released")

    async def _hold(self, lease: Any, step: Step, op: str) -> None:
        """Read, work, write: at both registers, where the hold is exclusive."""
        writes = step.kind in ("lock", "write")
        if writes:
            fenced, unfenced = self._registers_of(step.name)
            safe, unsafe = fenced.enter(lease.token, lease.id), unfenced.read()
        until = now() + step.hold
        while now() < until:
            await outcome(self._sleep(min(LOOK_EVERY, step.hold)))
            if step.style != "short" and not self._still_valid(lease, op):
                break
        valid = self._still_valid(lease, op)
        if writes:
            # Here a process can always be stopped: it has looked, and it has not written yet.
            self._orders.strike()
            if valid:
                unfenced.write(unsafe + 1)
            if safe is not None:
                fenced.write(lease.token, lease.id, safe + 1)

    def _still_valid(self, lease: Any, op: str) -> bool:
        # The stamp is from before the look: at that instant it was valid, too.
        at = now()
        valid = bool(lease.valid)
        if valid:
            self._pen.note("v", op, at)
        return valid

    def _registers_of(self, name: str) -> tuple[Fenced, Unfenced]:
        if name not in self._registers:
            folder = Path(self._settings.folder)
            self._registers[name] = Fenced(folder, name), Unfenced(folder, name)
        return self._registers[name]


def a_client(settings: Settings) -> Any:
    """Lockline's own, or the lock that was named instead of it."""
    owner = f"verify-{settings.number}"
    if settings.subject:
        module, _, function = settings.subject.partition(":")
        make = getattr(importlib.import_module(module), function)
        return make(settings, owner)
    return lockline_client(settings, owner)


def lockline_client(settings: Settings, owner: str) -> Any:
    """Lockline's own, of the worker's flavour."""
    connect = aio.connect if settings.flavour == "asyncio" else lockline.connect
    return connect(settings.url, owner=owner)


def work(settings: Settings) -> None:
    """Be a worker to the end."""
    pen, orders = Pen(Path(settings.folder), settings.number), Orders(settings)
    orders.bend_the_clock()
    orders.listen()

    def parties(client: Any, sleep: Callable[[float], Any]) -> list[Party]:
        return [Party(client, settings, number, pen, orders, sleep) for number in range(settings.parties)]

    if settings.flavour == "asyncio":

        async def on_a_loop() -> None:
            client = a_client(settings)
            await asyncio.gather(*(party.work() for party in parties(client, asyncio.sleep)))
            with contextlib.suppress(LocklineError):
                await outcome(client.close())

        asyncio.run(on_a_loop())
        return
    client = a_client(settings)
    with ThreadPoolExecutor(settings.parties) as threads:
        done = [threads.submit(run, party.work()) for party in parties(client, time.sleep)]
    for party in done:
        party.result()
    with contextlib.suppress(LocklineError):
        client.close()


def die_with_parent() -> None:
    """On Linux the kernel ends us when the one who started us dies, even while we are stopped."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    die_with_parent()
    # Ctrl-C is for the one who started us; it ends us in good order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = 1
    try:
        work(Settings.read(sys.stdin.readline()))
        code = 0
    except BaseException:
        traceback.print_exc()
    # At once: the thread that listens never comes to its end.
    os._exit(code)
