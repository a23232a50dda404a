"""Raise an exception in the calling thread between any two instructions of Lockline's own code.

The interpreter itself looks for signals only after calls and jumps back; a shape that survives a cut before every single
instruction survives those too, and those of the next interpreter.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import os
import random
import re
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, ParamSpec

from lockline.runtime.insisting import insist

from .instructions import look_at_instructions, stop_looking

P = ParamSpec("P")


class Cut(BaseException):
    """Ctrl-C, a soft time limit, an alarm that raises."""


class SoftLimit(Exception):
    """What most soft time limits are, in Celery and RQ and programs of one's own: an ordinary error."""


class Overtime(TimeoutError):
    """What the usual recipe for an alarm raises, and what sockets raise, too."""


@contextmanager
def alarm(problem: BaseException, after: float) -> Iterator[None]:
    """Raise this in the main thread after so many seconds, by a signal, and again where Python dropped it inside a finalizer."""

    def strike(number: int, frame: object) -> None:
        raise problem

    before = signal.signal(signal.SIGALRM, strike)
    end = insist(signal.SIGALRM, type(problem), lambda: None)
    try:
        signal.setitimer(signal.ITIMER_REAL, after)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        end()
        signal.signal(signal.SIGALRM, before)


class Misread(Cut):
    """The interpreter misread its own stack, and called what lay where the end of a `with` should have been.

    CPython 3.11 does that at times when a trace function raises while a `with` is being unwound. No signal is looked for in there,
    so what comes of it says nothing of the code under test.
    """


MISREAD = re.compile(r"'\w+' object is not callable")
HANDING_OVER = frozenset({"PUSH_EXC_INFO", "POP_EXCEPT", "RERAISE", "COPY"})
AFTER = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX", "RESUME"})
PLAIN = ("LOAD_", "STORE_", "DELETE_FAST", "SWAP", "NOP", "POP_TOP")


def _steps(code: CodeType) -> dict[int, str]:
    """The instructions before which a program can be cut, by their place in the code.

    Not where the interpreter itself takes an exception up or lays it down again: there are no calls, so no signal is looked
    for; and if one struck, the interpreter would take the error for one that is still being handled, and keep it, and all that
    it refers to, for the rest of the thread. And not where a `with` is left.
    """
    if code not in _known:
        instructions = list(dis.get_instructions(code))
        steps = {step.offset: step.opname for step in instructions}
        for at in _ends_of_with(instructions):
            del steps[at]
        for way in (list(steps), list(reversed(steps))):
            laying_down = False
            for at in way:
                name = steps.get(at, "")
                laying_down = name == "POP_EXCEPT" or (laying_down and name.startswith(PLAIN))
                if laying_down and name != "POP_EXCEPT":
                    del steps[at]
        _known[code] = {at: name for at, name in steps.items() if name not in HANDING_OVER}
    return _known[code]


def _looks(code: CodeType) -> dict[int, str]:
    """The instructions before which CPython really looks for signals: after a call, at a jump back, at the start of a frame."""
    if code not in _seen:
        instructions = list(dis.get_instructions(code))
        _seen[code] = {
            step.offset: step.opname
            for before, step in pairwise(instructions)
            if before.opname in AFTER or step.opname == "JUMP_BACKWARD"
        }
    return _seen[code]


def _ends_of_with(instructions: list[dis.Instruction]) -> Iterator[int]:
    """The instructions between the body of a `with` and the call of its `__exit__`: CPython looks for no signal there."""
    for last, call in enumerate(instructions):
        if call.opname != "CALL" or call.arg != 2:
            continue
        first = last - 1 if instructions[last - 1].opname == "PRECALL" else last
        if any(
            step.opname != "LOAD_CONST" or step.argval is not None for step in instructions[max(0, first - 3) : first]
        ):
            continue
        first -= 3
        if instructions[first - 1].opname == "SWAP":
            first -= 1
        yield from (step.offset for step in instructions[first : last + 1])


_known: dict[CodeType, dict[int, str]] = {}
_seen: dict[CodeType, dict[int, str]] = {}


def at_each_instruction(story: Callable[[int], Coroutine[Any, Any, str]], apart: int, least: int = 100) -> None:
    """Tell it on a loop, cut at the nth instruction, until it ends before that: at each in the full run, elsewhere at one of up to `apart`.

    It gives where it was cut; there are at least so many instructions.
    """
    dice = random.Random(7)
    nth, where = 0, "begun"
    while where:
        nth += 1 if os.environ.get("LOCKLINE_FULL") else dice.randint(1, apart)
        where = asyncio.run(story(nth))
    assert nth > least


class CutAt:
    """Runs something and raises Cut before the nth instruction (or line) that this thread runs in Lockline's code."""

    def __init__(
        self, nth: int, unit: str = "opcode", inside: str | None = None, raising: type[BaseException] = Cut,
        *, really: bool = False,
    ) -> None:  # fmt: skip
        """Only in files whose path has `inside` in it; without that, in all of Lockline and what it uses of `threading`.

        `really`: only where CPython looks for signals.
        """
        self._places = _looks if really else _steps
        self._nth = nth
        self._inside = inside
        self._raising = raising
        self.seen = 0
        """How many instructions (or lines) were run before it struck."""
        self._unit = unit
        self.where = ""
        """Where it struck; empty if the work was over before."""
        self.unheard = False
        """Whether it struck a finaliser: what is raised there comes out nowhere."""

    def __call__(self, work: Callable[[], Any]) -> Any:
        """What the work gives, done here."""
        self.begin()
        try:
            return work()
        except TypeError as problem:
            if self.where and MISREAD.fullmatch(str(problem)):
                raise Misread(self.where) from None
            raise
        finally:
            self.end()

    def begin(self) -> None:
        """Count in this thread from now on."""
        if self._unit == "opcode":
            look_at_instructions(self._is_inside, self._look)
        else:
            sys.settrace(self._trace_lines)

    def end(self) -> None:
        """Count no more."""
        if self._unit == "opcode":
            stop_looking()
        else:
            sys.settrace(None)

    def elsewhere(self, work: Callable[[], Any], seconds: float = 30.0) -> Any:
        """What the work gives, done in a thread of its own, which may hang."""
        got: list[Any] = []
        problem: list[BaseException] = []

        def body() -> None:
            try:
                got.append(self(work))
            except BaseException as error:
                problem.append(error)

        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        thread.join(seconds)
        assert not thread.is_alive(), f"hangs after a cut at {self.where}"
        if problem:
            error = problem.pop()
            error.__context__ = None
            # The frames that it went through, and what they held, are gone once it was caught.
            raise error.with_traceback(None)
        return got[0]

    def _is_inside(self, file: str) -> bool:
        # What it uses of `threading` too: a lock that is taken and given back in Python is one that can be left shut.
        ours = "/lockline/" in file or file.endswith("/threading.py") if self._inside is None else self._inside in file
        return ours and "/tests/" not in file

    def _trace_lines(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self._is_inside(frame.f_code.co_filename):
            return None
        if event == "line":
            self._look(frame)
        return self._trace_lines

    def _look(self, frame: FrameType) -> None:
        code = frame.f_code
        what = self._places(code).get(frame.f_lasti)
        if what is None:
            return
        self.seen += 1
        if self.seen != self._nth:
            return
        self.where = f"{code.co_filename.rpartition('/lockline/')[2]}:{frame.f_lineno} {code.co_name} {what}"
        below: FrameType | None = frame
        while below is not None:
            self.unheard = self.unheard or below.f_code.co_name == "__del__"
            below = below.f_back
        self.end()
        raise self._raising


def in_a_thread_of_its_own(story: Callable[P, None]) -> Callable[P, None]:
    """The story in another thread than the other tests: an exception that a tracer raises at the end of an `except` leaves Python 3.11
    believing for ever that this thread handles it, and every later error of the thread gets it as its context.
    """

    @functools.wraps(story)
    def told(*args: P.args, **kwargs: P.kwargs) -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(story, *args, **kwargs).result()

    return told
