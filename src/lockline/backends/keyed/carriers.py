"""The leases of a store that a client's claims hang on (etcd's leases, Consul's sessions): one for each length in use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ...runtime import Runtime
from ...runtime.exclusive import Exclusive

I = TypeVar("I")  # noqa: E741 - what the store calls it by


@dataclass(slots=True, eq=False)
class Carrier(Generic[I]):
    """One lease at the store: what hangs on it goes with it."""

    id: I
    seconds: float
    good_until: float
    """Until when it lives at least, by our clock and by what was confirmed."""
    dead: bool = False
    present: bool = False
    """Whether its own key has been put, which is seen to go with it."""
    generation: int = 0
    """When that key was last put; a withdrawn claim that is still on its way carries an older one."""
    alone: bool = False
    """Whether it carries one claim that is to outlive its client: nobody keeps it alive or gives it back."""

    def was_put(self, at: int) -> None:
        """Its own key was put, in that step of the store."""
        self.generation = max(self.generation, at)
        self.present = True


C = TypeVar("C", bound=Carrier[Any])


class Carriers(Generic[C]):
    """Those of one client."""

    def __init__(self, runtime: Runtime, died: Callable[[C], None]) -> None:
        self._runtime = runtime
        self._died = died
        self.reset()

    def reset(self) -> None:
        """As new: in a forked child they are the parent's."""
        self._by_length: dict[float, C] = {}
        self._asking = Exclusive(self._runtime)
        """One asks for all who need it at the same time."""

    def all(self) -> list[C]:
        return list(self._by_length.values())

    def called(self, id: object) -> C | None:
        """The one that the store calls so."""
        return next((known for known in self.all() if known.id == id), None)

    def lose(self, carrier: C) -> None:
        """The store has no such lease any more, and so none of its claims."""
        if carrier.dead:
            return
        carrier.dead = True
        for seconds, known in list(self._by_length.items()):
            if known is carrier:
                del self._by_length[seconds]
        self._died(carrier)
