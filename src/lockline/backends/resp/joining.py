"""Requests that may be joined on their way: what a transport knows of them, and that is all it knows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Joinable(Protocol):
    """A request that can travel as a part of another one, on a way on which none of these overtakes another; as bytes, what it is alone."""

    @property
    def patient(self) -> bool:
        """Whether it can wait for those that it may be joined with, as long as an answer is under way."""

    def __bytes__(self) -> bytes: ...


Request = bytes | Joinable


class Joined(Protocol):
    """Several requests that travel as one; as bytes, that one."""

    __slots__ = ()

    @property
    def places(self) -> list[int]:
        """Which of the requests that lay there, in the order of their answers."""

    @abstractmethod
    def __bytes__(self) -> bytes: ...

    @abstractmethod
    def spread(self, reply: Any) -> Sequence[Any] | None:
        """The answer to each; None if nothing was done, and each has to be sent alone."""


Join = Callable[[Sequence[Request]], Sequence[int | Joined] | None]
"""What becomes of requests that go out together: the places of those that go alone, and what the others have become; None if
all go alone. Those that are about the same thing stay in order."""


def apart(requests: Sequence[Request]) -> None:
    """Join nothing."""
