"""Who may begin a call when the server takes no more at once: in order of arrival, and who is in already before who comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from ...runtime import Runtime, Signal
from .connection import Call, Full, Who

NET: Final = 0.25
"""How long a lost wake-up can go unnoticed: whoever is cut short between being woken and beginning may take it along."""


class Streams:
    """The queue before one connection."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._calls: deque[Signal] = deque()
        self._newcomers: deque[Signal] = deque()

    async def begin(self, start: Callable[[Who], Call], newcomer: bool, until: float) -> Call | None:
        """Begin the call as soon as there is room for it; None when there was none by then.

        A claim that wants to enter can wait. One that stands or holds cannot: late looks and releases make everybody wait, and late
        renewals are lost leases.
        """
        queue = self._newcomers if newcomer else self._calls
        who: Who = "newcomer" if newcomer else "call"
        if not queue:
            try:
                return start(who)
            except Full:
                pass
        signal = self._runtime.signal()
        queue.append(signal)
        try:
            while True:
                signal.clear()
                now = self._runtime.now()
                if now >= until:
                    return None  # what is sent too late only makes others late
                if queue[0] is signal:
                    try:
                        return start(who)
                    except Full:
                        pass
                await signal.wait(min(until, now + NET))
        finally:
            queue.remove(signal)
            self.advance()

    def advance(self) -> None:
        """There may be room now: wake who is next."""
        for queue in (self._calls, self._newcomers):
            try:
                queue[0].set()
            except IndexError:
                continue
