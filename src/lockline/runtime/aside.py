"""A few threads for what may take long, so that whoever has deadlines to watch does not wait for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Final

MOST: Final = 16
"""Threads at most: that many pieces of work may hang before the next has to wait."""


class Aside:
    """Runs what it is given, each piece in order of arrival, in threads that end when there is nothing left."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._threads = 0
        self._mutex = threading.Lock()

    def run(self, work: Callable[[], object]) -> None:
        """Have it run; returns at once."""
        self._work.put(work)
        with self._mutex:
            if self._threads >= MOST:
                return
            self._threads += 1
        threading.Thread(target=self._drain, name="lockline-callback", daemon=True).start()

    def _drain(self) -> None:
        while True:
            try:
                work = self._work.get_nowait()
            except queue.Empty:
                with self._mutex:
                    self._threads -= 1
                    # Whoever puts something in after this look finds room for a thread of its own.
                    if self._work.empty():
                        return
                    self._threads += 1
                continue
            work()
            del work
