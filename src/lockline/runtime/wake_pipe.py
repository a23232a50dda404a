"""What gets a thread out of a `poll`."""

from __future__ import annotations

import os
from contextlib import suppress


class WakePipe:
    """A pipe that is polled beside sockets, made when somebody first polls it; whoever writes wakes the one who polls."""

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None
        self._rung = False

    def fileno(self) -> int:
        """What is polled."""
        if self._ends is None:
            self._ends = os.pipe()
            for end in self._ends:
                os.set_blocking(end, False)
            if self._rung:
                self.ring()
        return self._ends[0]

    def ring(self) -> None:
        """Wake whoever polls it, or is about to; safe from any thread."""
        # Before the look: whoever makes the pipe in this moment finds it.
        self._rung = True
        if self._ends is not None:
            with suppress(BlockingIOError):  # full of wake-ups already
                os.write(self._ends[1], b"!")

    def clear(self) -> None:
        """The one who polled is awake."""
        os.read(self.fileno(), 4096)

    def close(self) -> None:
        """Close both ends; it is made anew when it is polled again. In a forked child they are copies, and the parent's stay open."""
        ends, self._ends = getattr(self, "_ends", None), None
        for end in ends or ():
            os.close(end)

    __del__ = close
