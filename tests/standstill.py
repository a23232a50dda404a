"""A thread that stands still between two instructions of Lockline's own code, as any may on a busy machine, while others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import FrameType

from .instructions import look_at_instructions, stop_looking
from .servers.process import wait_for

A_WHILE = 30
MANY = 500
"""No work of these stories has as many instructions; one that comes as far does not end by itself."""


class StandsStill:
    """Does some work in a thread of its own, which stands before the nth instruction that it runs in this file until it may go on."""

    def __init__(
        self, work: Callable[[], object], file: str, nth: int, sleeps: Callable[[], object] = lambda: False
    ) -> None:
        """`sleeps` says of work that waits whether it does by now: then it stands still as well."""
        self.stood = False
        """Whether there were as many instructions."""
        self._work = work
        self._file = file
        self._left = nth
        self._error: BaseException | None = None
        self._there, self._may_go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_for(lambda: self._there.is_set() or sleeps(), A_WHILE, "where it stands still")

    def go_on(self, seconds: float = A_WHILE) -> None:
        """Let it go on, and wait for its end; what it raised is raised here."""
        self._may_go_on.set()
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "it goes on and does not end"
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        look_at_instructions(lambda file: file.endswith(self._file), self._look)
        try:
            self._work()
        except BaseException as error:
            self._error = error
        finally:
            stop_looking()
            self._there.set()

    def _look(self, frame: FrameType) -> None:
        self._left -= 1
        if not self._left:
            self.stood = True
            self._there.set()
            self._may_go_on.wait(A_WHILE)


class EachInstruction:
    """Gives the numbers of the instructions at which a story's work is to stand still, until it had no more of them."""

    def __init__(self, file: str, least: int) -> None:
        self._file = file
        self._least = least
        self._last: StandsStill | None = None

    def __iter__(self) -> Iterator[int]:
        for nth in range(1, MANY):
            yield nth
            assert self._last is not None
            if not self._last.stood:
                assert nth > self._least, "the work is not in this file"
                return
        raise AssertionError("it does not end")

    def stand_still(
        self, work: Callable[[], object], nth: int, sleeps: Callable[[], object] = lambda: False
    ) -> StandsStill:
        """Begin the work, and stand there."""
        self._last = StandsStill(work, self._file, nth, sleeps)
        return self._last
