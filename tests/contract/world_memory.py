"""`memory:` in the contract suite."""

from __future__ import annotations

from typing import ClassVar

from lockline.backends import memory

from .worlds import World, joins


@joins
class MemoryWorld(World):
    """Each test has a room of its own."""

    name = "memory"
    exclusion = "process"
    token_survives: ClassVar = frozenset({"release", "expiry"})
    runtime_clock = True
    spans_processes = False

    def place(self) -> str:
        return f"memory:{self.unique()}"

    def debris(self, place: str) -> list[str]:
        return sorted(memory._rooms[place]._lines)
