"""Raise an exception in the calling thread between any two instructions of Lockline's own code.

The interpreter itself looks for signals only after calls and jumps back; a shape that survives a cut before every single
instruction survives those too, and those of the next interpreter.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Cut(BaseException):
    """Ctrl-C, a soft time limit, an alarm that raises."""


class CutAt:
    """Runs something and raises Cut before the nth instruction (or line) that this thread runs in Lockline's code."""

    def __init__(self, nth: int, unit: str = "opcode", inside: str = "/lockline/") -> None:
        self._left = nth
        self._unit = unit
        self._inside = inside
        self.where = ""
        """Where it struck; empty if the work was over before."""

    def __call__(self, work: Callable[[], Any]) -> Any:
        sys.settrace(self._trace)
        try:
            return work()
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        file = frame.f_code.co_filename
        if self._inside not in file or "/tests/" in file:
            return None
        if self._unit == "opcode":
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        return self._look

    def _look(self, frame: FrameType, event: str, arg: object) -> Any:
        if event != self._unit:
            return self._look
        self._left -= 1
        if self._left:
            return self._look
        code = frame.f_code
        what = next((step.opname for step in dis.get_instructions(code) if step.offset == frame.f_lasti), "?")
        self.where = f"{code.co_filename.rpartition('/lockline/')[2]}:{frame.f_lineno} {code.co_name} {what}"
        sys.settrace(None)
        raise Cut
