"""Those who hear of events: whatever one of them does, the others hear, and nobody else notices."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from .events import Event, Listener

log = logging.getLogger("lockline")


class Listeners:
    """Calls each listener with each event; what one raises is logged, once for each listener."""

    def __init__(self, listeners: Iterable[Listener] = ()) -> None:
        self._listeners = list(listeners)
        self._failed: set[int] = set()

    def add(self, listener: Listener) -> None:
        """Call this one too from now on."""
        self._listeners.append(listener)

    def remove(self, listener: Listener) -> None:
        """Call it no more; it may have been removed before."""
        self._listeners = [one for one in self._listeners if one is not listener]

    def __call__(self, event: Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except BaseException as problem:
                # SystemExit too: it would end the thread that tells the others, and nobody else.
                if id(listener) not in self._failed:
                    self._failed.add(id(listener))
                    self._complain(problem)

    def _complain(self, problem: BaseException) -> None:
        try:
            log.error("an on_event listener failed, and only this first time is told: %r", problem, exc_info=problem)
        except Exception:
            pass  # a handler that raises: the log is a listener too, and there is nobody left to tell
