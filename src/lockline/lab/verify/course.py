"""The time of a run: it waits, tells how far it is, and finds out when it may end before its time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ...runtime.clock import now

TICK: Final = 0.25
"""Seconds between two words on how far it is."""
LOOK_EVERY: Final = 1.0
LOOK_SHARE: Final = 10
"""A look at the whole history may take a tenth of the time: between two of them ten times as long passes as the last one took."""


class Course:
    """So many seconds from now on, or until somebody wants no more, or until what is looked for has been found."""

    def __init__(
        self,
        seconds: float,
        unwanted: threading.Event,
        show: Callable[[float], None] = lambda elapsed: None,
        found: Callable[[], bool] | None = None,
    ) -> None:
        self.began = now()
        self.ends = self.began + seconds
        self.found_out = False
        self._unwanted = unwanted
        self._show = show
        self._found = found
        self._look_at = self.began + LOOK_EVERY

    def pause(self, seconds: float) -> bool:
        """Wait so long, but not beyond the end; True when the run is over."""
        until = min(now() + seconds, self.ends)
        while (left := until - now()) > 0 and not self._early():
            self._show(now() - self.began)
            self._unwanted.wait(min(left, TICK))
        return self._early() or now() >= self.ends

    def _early(self) -> bool:
        if self._found is not None and not self.found_out and now() >= self._look_at:
            began = now()
            self.found_out = self._found()
            self._look_at = now() + max(LOOK_EVERY, LOOK_SHARE * (now() - began))
        return self.found_out or self._unwanted.is_set()
