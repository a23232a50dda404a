"""Whether one task can go on only after another: what asyncio knows of that and tells nobody.

`asyncio.wait_for` before Python 3.12, `gather` and task groups run what they are given as a task of its own. A lock that is
asked for in there is asked for by somebody else than the task that holds it, and would be waited for for ever. This looks
at asyncio's private attributes, so it may see less on another release, and then says no.
"""

from __future__ import annotations

import asyncio
from typing import Any


def waits_for(task: object, other: object) -> bool:
    """Whether this task is known to wait, directly or through others, for that one's end."""
    seen: set[int] = set()
    todo: list[Any] = [task]
    while todo:
        at = todo.pop()
        if at is other:
            return True
        if at is None or id(at) in seen:
            continue
        seen.add(id(at))
        awaited = getattr(at, "_fut_waiter", None)
        if awaited is not None:
            if _ends(other, awaited):
                return True
            todo.append(awaited)
        # A `gather` is over when all its children are.
        todo.extend(getattr(at, "_children", ()))
    return task is other


def _ends(task: object, awaited: object) -> bool:
    """Whether the end of the task is what completes that future: by a callback of `wait_for` or of a task group."""
    if not isinstance(task, asyncio.Task):
        return False
    for entry in getattr(task, "_callbacks", None) or ():
        callback = entry[0] if isinstance(entry, tuple) else entry
        if any(argument is awaited for argument in getattr(callback, "args", ())):
            return True
        if getattr(getattr(callback, "__self__", None), "_on_completed_fut", None) is awaited:
            return True
    return False
