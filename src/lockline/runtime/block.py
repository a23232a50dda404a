"""The end of a `with`, as an object that lives exactly as long as the block."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

_beginning = threading.local()
"""The block that this thread is about to enter: the interpreter asks for the end of a block before it runs the beginning."""


class Block:
    """What the interpreter keeps to call when a block is left, and drops when it is, by whatever way.

    An exception can strike between the last instruction of a block and the first one of its `__exit__`: then nothing of ours
    runs, and the block is left all the same. That this object is gone says so.
    """

    __slots__ = ("__weakref__", "lease", "owner")

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.lease: Any = None
        """What was taken at the beginning of the block; None where that was not run by a `with`."""

    def __call__(self, *error: Any) -> None:
        if self.lease is None:
            type(self.owner).__exit__(self.owner, *error)
        else:
            self.lease._leave(*error)


class Exit:
    """An `__exit__` that is another object for each block; taken from the class, the plain method."""

    def __init__(self, method: Callable[..., None]) -> None:
        self.method = method

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        if owner is None:
            return self.method
        # A lease that is about to be bound to a block is no longer the caller's to drop: cut off here, it is given back at once.
        owner._given = False
        block = Block(owner)
        _beginning.block = weakref.ref(block)
        return block


def bind(owner: Any, lease: Any) -> bool:
    """Let the lease end with the block of this owner that is being entered; False by hand, or in an ExitStack."""
    try:
        ref: weakref.ref[Block] = _beginning.block
    except AttributeError:
        return False
    block = ref()
    if block is None or block.owner is not owner or block.lease is not None:
        return False
    lease._block = ref
    block.lease = lease
    return True
