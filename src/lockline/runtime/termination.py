"""SIGTERM as an orderly end: what is held is given back first, where the signal alone would end the process without a word."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

CODE: Final = 128 + signal.SIGTERM


def _is_ours() -> bool:
    """Whether nobody else has said what SIGTERM does, and we may."""
    return threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """In the main thread, while this block runs: SIGTERM raises SystemExit in it, once."""
    if not _is_ours():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        # What is given back now must not be cut short by a second one; KILL still ends it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(CODE)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def cancel_on_sigterm() -> Iterator[None]:
    """The same on a loop: the task that runs this block is cancelled, once, and SystemExit comes out of it."""
    task = asyncio.current_task()
    if task is None or not _is_ours():
        yield
        return
    loop = task.get_loop()
    asked: list[int] = []

    def leave() -> None:
        if not asked:
            asked.append(CODE)
            task.cancel("SIGTERM")

    loop.add_signal_handler(signal.SIGTERM, leave)
    try:
        yield
    except asyncio.CancelledError:
        if asked and task.uncancel() == 0:
            raise SystemExit(CODE) from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
