"""Who leads, for one who stands in no line: told by the store where it can tell, else by a look now and then."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from ..errors import BackendUnavailable, ClientClosed, LocklineError
from ..runtime.fork import tell_after_fork
from .backend import Watching
from .claim import Standing
from .waiting import begun

if TYPE_CHECKING:
    from .engine import Engine

NET: Final = 5.0
"""Seconds after which one looks whom nothing was told: a push is only ever a hint."""
TO_BEGIN: Final = 1.0
"""Seconds that a store has to say that it will tell of changes: after that a look is made all the same."""
APART: Final = 0.01
"""Seconds between two looks at least: on a line that changes all the time they would be all that the store does."""
SOON: Final = 0.05
"""How long after the end of a lease one looks whether somebody else has it: who waits for it is let in first."""


class Watch:
    """One who wants to know who holds a name, and each change of that."""

    def __init__(self, engine: Engine, name: str, every: float) -> None:
        self._engine = engine
        self._name = name
        self._every = every
        self.forked()
        tell_after_fork(self)
        self._told: tuple[Standing | None] | tuple[()] = ()
        """What the caller knows, if it was told anything yet."""
        self._looked = -APART
        self._pushes: Watching | None = engine.backend if isinstance(engine.backend, Watching) else None

    def forked(self) -> None:
        """In a child: a store that was told by this id whom to tell would tell one of the two."""
        self._id = f"watch-{secrets.token_hex(8)}"
        """By which hints find it, as they find a claim."""

    async def next(self) -> Standing | None:
        """Who holds it now, as soon as that is another than the one who was told last; a silent store is waited for."""
        now, hints = self._engine.runtime.now, self._engine._hints
        # Each time: in a forked child nobody is expected any more.
        hints.expect(self._id)
        hints.expect(begun(self._id))
        while True:
            pushed = await self._begin()
            if now() < self._looked + APART:
                await self._engine.runtime.sleep(APART)
            self._looked = now()
            look_by = self._looked + (NET if pushed else self._every)
            try:
                line = await self._engine.ask(lambda until: self._engine.backend.look(self._name, until))
            except BackendUnavailable as away:
                if away.permanent or isinstance(away, ClientClosed):
                    raise
                look_by = now() + self._every
            else:
                holder = line.holders[0] if line.holders else None
                if not self._told or _id(holder) != _id(self._told[0]):
                    self._told = (holder,)
                    return holder
                if holder is not None and pushed:
                    # One that has died changes nothing, and so nothing is told of it.
                    look_by = min(look_by, now() + max(0.0, holder.remaining) + SOON)
            await hints.wait(self._id, look_by)

    async def _begin(self) -> bool:
        """Have the store tell of the next change; whether it will."""
        if self._pushes is None:
            return False
        pushes, until = self._pushes, self._engine.runtime.now() + TO_BEGIN
        # What came too late the last time says nothing of this one.
        await self._engine._hints.wait(begun(self._id), 0.0)
        try:
            pushed = await self._engine.ask(lambda _: pushes.watch(self._name, self._id, until))
        except ClientClosed:
            raise
        except BackendUnavailable:
            # The look that follows says what is wrong, if it still is.
            return False
        if pushed:
            await self._engine._hints.wait(begun(self._id), until)
        return pushed

    async def close(self) -> None:
        """Nobody asks any more."""
        for hint in (self._id, begun(self._id)):
            self._engine._hints.forget(hint)
        if self._pushes is not None:
            pushes = self._pushes
            try:
                # As all that concerns the backend: where that lives.
                await self._engine.ask(lambda until: pushes.unwatch(self._id))
            except LocklineError:
                pass  # closed, and with it all that was told


def _id(holder: Standing | None) -> str | None:
    return None if holder is None else holder.id
