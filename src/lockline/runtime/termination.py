"""SIGTERM as an orderly end: what is held is given back first, where the signal alone would end the process without a word."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from .insisting import insist

if TYPE_CHECKING:
    import asyncio

CODE: Final = 128 + signal.SIGTERM


class Terminated(SystemExit):
    """SIGTERM came: told apart from a SystemExit of the program's own, which may be dropped as ever."""


def _is_ours() -> bool:
    """Whether nobody else has said what SIGTERM does, and we may."""
    return threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """In the main thread, while this block runs: SIGTERM raises SystemExit in it, once, and again where Python dropped that."""
    if not _is_ours():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        # What is given back now must not be cut short by a second one; KILL still ends it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated(CODE)

    signal.signal(signal.SIGTERM, leave)
    end = insist(signal.SIGTERM, Terminated, lambda: signal.signal(signal.SIGTERM, leave))
    try:
        yield
    finally:
        end()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Ending:
    """The tasks of one loop that SIGTERM is to end, while there are any."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []
        """One that is in several blocks stands here several times."""
        self.cancelled: set[asyncio.Task[Any]] = set()

    def begin(self) -> None:
        """Cancel each of them, once."""
        for task in self.tasks:
            if task not in self.cancelled:
                self.cancelled.add(task)
                task.cancel("SIGTERM")

    def is_the_last(self, task: asyncio.Task[Any]) -> bool:
        """Whether nobody else is still on the way out."""
        return all(other is task for other in self.tasks)


# Module state with a reason: a loop has one handler of a signal, and several tasks on it may lead.
_endings: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Ending] = weakref.WeakKeyDictionary()


@contextmanager
def cancel_on_sigterm() -> Iterator[None]:
    """The same on a loop: each task that runs this block is cancelled, once, and SystemExit comes out of the last."""
    import asyncio  # here, because a program without a loop should not pay for it

    task = asyncio.current_task()
    loop = task.get_loop() if task is not None else None
    ending = _endings.get(loop) if loop is not None else None
    if task is None or loop is None or (ending is None and not _is_ours()):
        yield
        return
    if ending is None:
        ending = _endings[loop] = _Ending()
        loop.add_signal_handler(signal.SIGTERM, ending.begin)
    ending.tasks.append(task)
    try:
        yield
    except asyncio.CancelledError:
        # Out of one before the last, it would end the loop while others still give back what they hold.
        if task in ending.cancelled and ending.is_the_last(task) and task.uncancel() == 0:
            raise SystemExit(CODE) from None
        raise
    finally:
        ending.tasks.remove(task)
        if not ending.tasks:
            del _endings[loop]
            loop.remove_signal_handler(signal.SIGTERM)
