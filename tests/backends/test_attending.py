"""When a client begins to listen for what it holds: not for short holds, however often the keeper comes by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from lockline.backends.attending import A_WHILE, Attending


@dataclass
class Held:
    """A claim that holds, and cannot be told of an eviction."""

    state: str = "holds"
    attended: bool = False


class Minutes:
    """A runtime whose time is set by hand, and that notes what is begun."""

    def __init__(self) -> None:
        self.time = 100.0
        self.begun: list[str] = []

    def now(self) -> float:
        return self.time

    def spawn(self, work: Any, name: str) -> Any:
        self.begun.append(name)
        return self

    def alive(self) -> bool:
        return False


async def listen() -> None:
    raise AssertionError("only begun")


def test_two_visits_in_one_moment_are_no_long_hold() -> None:
    """The keeper comes once because a claim is noted and once because it holds; then it is asked for nothing."""
    runtime = Minutes()
    attending, held = Attending(cast(Any, runtime)), [Held()]
    for _ in range(3):
        attending.look(held, listen)
        runtime.time += A_WHILE / 3 - 0.001
    assert not runtime.begun
    runtime.time += A_WHILE
    attending.look(held, listen)
    assert len(runtime.begun) == 1
