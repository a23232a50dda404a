"""One background worker: it comes when something is due or when it is called, stays for a while, and goes when nothing is left."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ..runtime import Running, Runtime, Signal
from ..runtime.section import Inside

log = logging.getLogger("lockline")

LINGER: Final = 5.0
"""How long it stays with nothing to do, so that a busy client does not start one per acquire."""
AFTER_A_FAILURE: Final = 0.05


class Worker:
    """Looks round again and again: `look_round` does what is due and says when to come again, `idle` whether nothing is left.

    It is started by the first call and after an idle while by the next. `net` is the longest it stays away while it is there.
    """

    def __init__(
        self, runtime: Runtime, name: str, look_round: Callable[[], Awaitable[float]], idle: Callable[[], bool],
        *, net: float = float("inf"), linger: Callable[[], float] = lambda: LINGER, signal: Signal | None = None,
    ) -> None:  # fmt: skip
        self._runtime = runtime
        self._name = name
        self._signal = signal or runtime.signal()
        self._alone = runtime.section()
        self._look_round = look_round
        self._idle = idle
        self._net = net
        self._linger = linger
        self._running: Running | None = None
        self._seat: object = None
        """What a worker has to sit on: one that finds another there ends."""
        self.planned = float("inf")
        """When it comes by itself; inf if it does not."""
        self.stopped = False

    def by(self, moment: float) -> None:
        """Come at that moment at the latest."""
        if moment < self.planned:
            self.wake()

    def ring(self) -> None:
        """Come now, if it is there at all; safe from anywhere."""
        self._signal.set()

    def wake(self) -> None:
        """Come now. RuntimeError where no thread is to be had."""
        try:
            self._alone(self._start_or_ring)
        except Inside:
            # A signal handler or finaliser in the middle of just that: at the latest the next round sees what it brought.
            self._signal.set()

    def _start_or_ring(self) -> None:
        if self.stopped:
            return
        if self._running is not None and self._running.alive():
            self._signal.set()
            return
        # First: of two that were started because the start of one was cut short, the later one stays.
        self._seat = seat = object()
        self._running = self._runtime.spawn(lambda: self._work(seat), self._name, lasting=True)

    async def stop(self, until: float) -> None:
        """End it, and wait for that."""
        self.stopped = True
        running = self._running
        self._signal.set()
        if running is not None:
            await running.join(until)

    async def _work(self, seat: object) -> None:
        idle_since: float | None = None
        while not self.stopped and self._seat is seat:
            # Set before we look round and never moved past what is planned here: whoever brings something that is due
            # later needs to wake nobody.
            self._signal.clear()
            self.planned = self._runtime.now() + self._net
            try:
                plan = await self._look_round()
            except Exception:
                log.exception("%s met an unexpected error and goes on", self._name)
                plan = self._runtime.now() + AFTER_A_FAILURE
            now = self._runtime.now()
            if not self._idle():
                idle_since = None
            elif idle_since is None:
                idle_since = now
            elif now >= idle_since + self._linger() and self._alone(self._retire):
                return
            if idle_since is not None:
                plan = min(plan, idle_since + self._linger())
            self.planned = min(plan, self.planned)
            await self._signal.wait(self.planned)

    def _retire(self) -> bool:
        # First, so that what is brought after the look below finds no plan that it could rely on.
        self.planned = float("inf")
        if not self._idle() or self._signal.is_set():
            return False
        self._running = None
        return True
