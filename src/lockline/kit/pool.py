"""A pool: which one of several things, never twice. A permit lets in as many as there are, a lock says who has which."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

from ..core import arguments
from ..core.engine import PATIENCE, Engine
from ..core.handle import H, Holding
from ..core.live import LiveClaim
from ..core.terms import Terms
from ..errors import AcquireTimeout, ConfigError
from .locks import Together, give_up_all

I = TypeVar("I")  # noqa: E741 - an item
MOST: Final = 1000
"""Items of one pool: one is found by trying."""
PAUSE: Final = 0.05
"""How long one who was let in waits for an item that a dead holder still seems to have."""


def items_of(name: str, items: object) -> dict[str, Any]:
    """The lock of each item, by its name, and the item; ConfigError for what cannot be told apart."""
    if isinstance(items, (str, bytes)) or not isinstance(items, Sequence):
        raise ConfigError(f"a pool has a list of items, not {items!r}")
    if not 1 <= len(items) <= MOST:
        raise ConfigError(f"a pool has from 1 to {MOST} items, not {len(items)}")
    named = {arguments.a_name(f"{name}/{item}", "pool item"): item for item in items}
    if len(named) < len(items):
        raise ConfigError(f"the items of a pool have different names: {', '.join(sorted(map(str, items)))}")
    return named


async def take_one(
    engine: Engine, permit: Terms, items: dict[str, Any], timeout: float | None, make: Callable[[LiveClaim], H]
) -> list[H]:
    """A permit, and the lock of one item that nobody else has; AcquireTimeout, with nothing held, if none came in time."""
    now = engine.runtime.now
    deadline = None if timeout is None else now() + timeout
    while True:
        taken: list[H] = []
        try:
            let_in = await engine.acquire(permit, None if deadline is None else max(0.0, deadline - now()), make)
            assert let_in is not None
            taken.append(let_in)
            while let_in.valid:
                # Longer than a mere try: of hundreds who were let in at once the last waits for the answers to the others.
                patience = PATIENCE if deadline is None else max(0.0, deadline - now())
                found = await _find(engine, permit, items, make, patience)
                if found is not None:
                    taken.append(found)
                    if let_in.valid and found.valid:
                        return taken
                    break
                # There is a permit for each, so one is about to become free: of a holder that died, or is on its way out.
                if deadline is not None and now() >= deadline:
                    raise AcquireTimeout(permit.name, waited=timeout or 0.0)
                await engine.runtime.sleep(PAUSE)
        except BaseException:
            await give_up_all(engine, taken)
            raise
        # The permit was lost while an item was looked for: nobody held anything yet, so it is only begun again.
        await give_up_all(engine, taken)


async def _find(
    engine: Engine, permit: Terms, items: dict[str, Any], make: Callable[[LiveClaim], H], patience: float
) -> H | None:
    """The lock of an item that nobody has now."""
    item = permit._replace(kind="lock", weight=1, capacity=1, on_wait=None, max_waiting=None, minds_the_wait=False)
    # From anywhere, so that those who come together do not all try the same one first.
    for name in random.sample(list(items), len(items)):
        found = await engine.acquire(item._replace(name=name), patience, make, wait=False)
        if found is not None:
            return found
    return None


class AnySlot(Holding, Generic[I]):
    """One item of a pool: it holds as its item's lock does."""

    item: I
    """Which one it is."""


class AnyPool(Together, Generic[I]):
    """Several things of which each may be had by one: a handle factory without state of its own."""

    def __init__(self, engine: Engine, permit: Terms, items: dict[str, I], lock_class: Callable[..., Any]) -> None:
        super().__init__(engine, permit, permit.timeout, lock_class)
        self._permit = permit
        self._items = items

    @property
    def name(self) -> str:
        """The name of the pool."""
        return self._permit.name

    @property
    def items(self) -> tuple[I, ...]:
        """What is in it."""
        return tuple(self._items.values())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {len(self._items)} on {self._engine.backend.url}>"
