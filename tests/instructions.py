"""Look at each instruction that this thread runs, before it runs: the same on every Python from 3.11 on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

Inside = Callable[[str], bool]
"""Whether the instructions of this file are looked at."""
Look = Callable[[FrameType], object]
"""Called before an instruction; `frame.f_lasti` is its place. What it raises is raised there."""


def look_at_instructions(inside: Inside, look: Look) -> None:
    """Begin, for this thread."""
    if sys.version_info >= (3, 12):
        _begin(inside, look)
        return

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        if not inside(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    def step(frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            look(frame)
        return step

    sys.settrace(enter)


def stop_looking() -> None:
    """End it, for this thread; also from inside a look."""
    if sys.version_info >= (3, 12):
        _looks.pop(threading.get_ident(), None)
        if not _looks:
            sys.monitoring.set_events(sys.monitoring.DEBUGGER_ID, 0)
    else:
        sys.settrace(None)


_looks: dict[int, tuple[Inside, Look]] = {}
"""By thread."""

if sys.version_info >= (3, 12):
    # settrace sees the instructions of a function only from its second call on.
    TOOL = sys.monitoring.DEBUGGER_ID
    INSTRUCTION = sys.monitoring.events.INSTRUCTION

    def _begin(inside: Inside, look: Look) -> None:
        if sys.monitoring.get_tool(TOOL) is None:
            sys.monitoring.use_tool_id(TOOL, "lockline's tests")
            sys.monitoring.register_callback(TOOL, INSTRUCTION, _step)
        _looks[threading.get_ident()] = inside, look
        sys.monitoring.set_events(TOOL, INSTRUCTION)

    def _step(code: CodeType, offset: int) -> Any:
        file = code.co_filename
        if "/lockline/" not in file and not file.endswith("/threading.py"):
            return sys.monitoring.DISABLE  # no look is inside there
        found = _looks.get(threading.get_ident())
        if found is not None and found[0](file):
            found[1](sys._getframe(1))
        return None
