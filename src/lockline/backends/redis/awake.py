"""Look for an answer for a moment before going to sleep: from the same machine it comes sooner than a sleeping core wakes up."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

MOMENT = 60e-6
"""Seconds that are spent awake."""
LONGEST_REST = 1024
"""Times that nothing is tried, after it was in vain again and again: the server is far away, or busy."""

_let_others: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Awake:
    """Learns from each time whether the next is worth it."""

    __slots__ = ("_in_vain", "_rest")

    def __init__(self) -> None:
        self._rest = 0
        self._in_vain = 1

    def look(self, attempt: Callable[[], T | None]) -> T | None:
        """What the attempt finds, if it finds it soon; whoever else wants this core has it in between."""
        if self._rest:
            self._rest -= 1
            return None
        until = perf_counter() + MOMENT
        while perf_counter() < until:
            found = attempt()
            if found:
                self._in_vain = max(1, self._in_vain // 2)
                return found
            _let_others()
        self._rest = self._in_vain = min(4 * self._in_vain, LONGEST_REST)
        return None
