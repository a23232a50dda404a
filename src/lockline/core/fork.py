"""After a fork the child holds nothing and uses nothing that it inherited."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that must forget what belongs to the parent."""

    def forked(self) -> None: ...


# The one piece of module state: the interpreter's fork hook cannot be taken back, so it is set once, for all.
_alive: weakref.WeakSet[Forkable] = weakref.WeakSet()


def tell_after_fork(thing: Forkable) -> None:
    """Call `thing.forked()` in every child, as long as the thing lives."""
    _alive.add(thing)


def _in_child() -> None:
    for thing in list(_alive):
        thing.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
