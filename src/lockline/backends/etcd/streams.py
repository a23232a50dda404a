"""Who may begin a call: in order of arrival, when the server takes no more at once; renewals before all others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from ...core.runtime import Runtime, Signal
from .wire import SPARED, Call, Full

NET: Final = 0.25
"""How long a lost wake-up can go unnoticed: whoever is cut short between being woken and beginning may take it along."""


class Streams:
    """The queue before one connection."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ordinary: deque[Signal] = deque()
        self._urgent: deque[Signal] = deque()

    async def begin(self, start: Callable[[int], Call], urgent: bool, until: float) -> Call | None:
        """Begin the call by `start(spared)` as soon as there is room for it; None when there was none by then."""
        queue, spared = (self._urgent, SPARED - 1) if urgent else (self._ordinary, SPARED)
        if not queue:
            try:
                return start(spared)
            except Full:
                pass
        signal = self._runtime.signal()
        queue.append(signal)
        try:
            while True:
                signal.clear()
                if queue[0] is signal:
                    try:
                        return start(spared)
                    except Full:
                        pass
                now = self._runtime.now()
                if now >= until:
                    return None
                await signal.wait(min(until, now + NET))
        finally:
            queue.remove(signal)
            self.advance()

    def advance(self) -> None:
        """There may be room now: wake who is next."""
        for queue in (self._urgent, self._ordinary):
            try:
                queue[0].set()
            except IndexError:
                continue
