"""One piece of work at a time, in threads that an exception may strike between any two instructions.

Ctrl-C, a soft time limit, an alarm that raises: Python can raise them after any call. A `with mutex:` is cut between taking
the mutex and noting it, or between its last statement and giving it back; then it stays taken for ever.
"""

from __future__ import annotations

import sys
from _thread import LockType, allocate_lock
from collections import deque
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, TypeVar

from . import clock

T = TypeVar("T")

NET = 0.02
"""How long one who waits outside sleeps at most: only an exception in the very moment of waking him can make him need it."""

_inside: ContextVar[object] = ContextVar("lockline_inside")


class Inside(RuntimeError):
    """This very thread is in the middle of the section: a signal handler or a finaliser called back into it."""


class Late(Exception):
    """The moment until which it could be waited for came while somebody else was inside: nothing was done."""


class Section:
    """Runs one piece of work at a time, whatever strikes.

    A `Context` lets nobody in while somebody is in it, and the interpreter itself lets him out, in C, by whatever way the
    work ended: there is no moment at which it could be entered and not left. The context also tells a thread that is inside
    already (a signal handler, a `__del__`) from one that has to wait: it is the current one.
    """

    __slots__ = ("_context", "_waiting")

    def __init__(self) -> None:
        self._context = Context()
        self._context.run(_inside.set, self)
        self._waiting: deque[LockType] = deque()

    def __call__(self, work: Callable[..., T], *args: Any) -> T:
        """What the work gives; Inside if this thread is in the section already, having changed nothing."""
        try:
            return self._context.run(work, *args)
        except RuntimeError as problem:
            if not _refused(problem):
                raise
        finally:
            if self._waiting:
                self._let_in()
        return self._wait(work, args, None)

    def by(self, until: float, work: Callable[..., T], *args: Any) -> T:
        """The same; Late if nobody let us in by then."""
        return self._wait(work, args, until)

    def attempt(self, work: Callable[..., object], *args: Any) -> bool:
        """Whether the work could be done now, because nobody was inside."""
        try:
            self._context.run(work, *args)
        except RuntimeError as problem:
            if not _refused(problem):
                raise
            return False
        finally:
            if self._waiting:
                self._let_in()
        return True

    def _wait(self, work: Callable[..., T], args: tuple[Any, ...], until: float | None) -> T:
        if self.entered() or self._below():
            raise Inside("a signal handler or finaliser asked for what the thread under it is in the middle of")
        gate = allocate_lock()
        gate.acquire()
        try:
            while True:
                self._waiting.append(gate)
                try:
                    return self._context.run(work, *args)
                except RuntimeError as problem:
                    if not _refused(problem):
                        raise
                if until is not None and clock.now() >= until:
                    raise Late
                gate.acquire(True, NET)
        finally:
            while gate in self._waiting:
                self._leave_the_queue(gate)
            if self._waiting:
                self._let_in()

    def _leave_the_queue(self, gate: LockType) -> None:
        try:
            self._waiting.remove(gate)
        except (ValueError, IndexError):
            pass  # somebody has just called it, or changed the queue under our search

    def _let_in(self) -> None:
        try:
            self._waiting.popleft().release()
        except (IndexError, RuntimeError):
            pass  # another one was quicker; or it was called twice, because it queued again just then

    def entered(self) -> bool:
        """Whether this very thread is inside, and in no other section within."""
        return _inside.get(None) is self

    def _below(self) -> bool:
        """Whether one of the calls under us is of this section: it is nested, and its thread was interrupted further in."""
        frame = sys._getframe(2).f_back
        while frame is not None:
            if frame.f_code in _OURS and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False


_OURS = frozenset({Section.__call__.__code__, Section.attempt.__code__, Section._wait.__code__})


def _refused(problem: RuntimeError) -> bool:
    """Whether the context let us not in: then the error comes out of no frame of the work's."""
    trace = problem.__traceback__
    return trace is None or trace.tb_next is None
