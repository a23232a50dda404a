"""`memory:` in the contract suite."""

from __future__ import annotations

from lockline.backends import memory

from .worlds import World, joins


@joins
class MemoryWorld(World):
    """Each test has a room of its own."""

    name = "memory"
    hands_on = True
    runtime_clock = True
    spans_processes = False

    def place(self) -> str:
        return f"memory:{self.unique()}"

    def debris(self, place: str) -> list[str]:
        return sorted(memory._rooms[place]._lines)
