"""Around a fork: what must not cross it is put away before, and the child holds nothing and uses nothing that it inherited."""

from __future__ import annotations

import itertools
import logging
import os
import weakref
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("lockline")


class Forkable(Protocol):
    """Something that must forget what belongs to the parent."""

    def forked(self) -> None: ...


class ForkSensitive(Forkable, Protocol):
    """Something that must not even be there at the moment of a fork."""

    def before_fork(self) -> None: ...
    def after_fork(self) -> None: ...


class _Register:
    """What lives, in the order of its arrival. Each change and each reading is one call into C: no lock that a fork could copy."""

    def __init__(self) -> None:
        self._things: dict[int, weakref.ref[Forkable]] = {}
        self._numbers = itertools.count()

    def add(self, thing: Forkable) -> None:
        number = next(self._numbers)
        self._things[number] = weakref.ref(thing, lambda _: self._things.pop(number, None))

    def tell(self, message: Callable[[Forkable], None]) -> None:
        """Each hears it, whatever happens to the others: half of a process put away would be worse than none."""
        cut: BaseException | None = None
        for reference in list(self._things.values()):
            thing = reference()
            if thing is None:
                continue
            try:
                message(thing)
            except Exception:
                log.exception("%r was not ready for a fork", thing)
            except BaseException as interrupt:
                cut = interrupt
        if cut is not None:
            raise cut


# The one piece of module state: the interpreter's fork hooks cannot be taken back, so they are set once, for all.
_alive = _Register()
_sensitive = _Register()


def tell_after_fork(thing: Forkable) -> None:
    """Call `thing.forked()` in every child, as long as the thing lives."""
    _alive.add(thing)


def tell_around_fork(thing: ForkSensitive) -> None:
    """Call `thing.before_fork()` before a fork, and then `after_fork()` in the parent; its owner tells it `forked()`."""
    _sensitive.add(thing)


def _before() -> None:
    _sensitive.tell(lambda thing: thing.before_fork())  # type: ignore[attr-defined]


def _in_parent() -> None:
    _sensitive.tell(lambda thing: thing.after_fork())  # type: ignore[attr-defined]


def _in_child() -> None:
    _sensitive.tell(lambda thing: thing.forked())
    _alive.tell(lambda thing: thing.forked())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
