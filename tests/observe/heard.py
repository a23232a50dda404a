"""What a listener heard, for a test to wait for and to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lockline.observe import Asked, ClaimEvent, Event, Granted, Lost, Released, Waiting, Withdrawn

from ..contract.scene import A_MINUTE
from ..servers.process import wait_for

E = TypeVar("E", bound=Event)


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def all(self, kind: type[E]) -> list[E]:
        return [event for event in list(self.events) if isinstance(event, kind)]

    def words(self, name: str | None = None) -> list[str]:
        """What happened, in order; to one name only if it is said. Renewals come when they come, and are left out."""
        return [
            event.what
            for event in list(self.events)
            if (name is None or getattr(event, "name", None) == name) and event.what not in ("renewed", "renewal late")
        ]

    def stories(self) -> list[list[str]]:
        """What happened to each claim, in the order in which they were asked for."""
        found: dict[str, list[str]] = {}
        for event in list(self.events):
            if isinstance(event, ClaimEvent) and event.what not in ("renewed", "renewal late"):
                found.setdefault(event.claim, []).append(event.what)
        return list(found.values())

    def wait_for(self, condition: Callable[[], object], what: str = "the event") -> None:
        wait_for(condition, A_MINUTE, what)

    def wait(self, kind: type[E], number: int = 1) -> E:
        """That one of its kind, once it is heard."""
        wait_for(lambda: len(self.all(kind)) >= number, A_MINUTE, f"{number} x {kind.__name__} in {self.events}")
        return self.all(kind)[number - 1]

    def wait_for_the_end(self, of: int) -> None:
        """So many stories have begun, and each has its end: before the last of them has begun none may be open, either."""
        wait_for(lambda: len(self.all(Asked)) >= of and self.open == 0, A_MINUTE, f"the end of {of} stories")

    @property
    def waiters(self) -> int:
        """How many wait, by what was heard."""
        waiting = {event.claim for event in self.all(Waiting)}
        return len(waiting - {event.claim for kind in (Granted, Withdrawn, Lost) for event in self.all(kind)})

    @property
    def holders(self) -> int:
        """How many hold, by what was heard."""
        return (
            len(self.all(Granted))
            - len(self.all(Released))
            - len([event for event in self.all(Lost) if event.held is not None])
        )

    @property
    def open(self) -> int:
        """How many stories have no end yet."""
        return len(self.all(Asked)) - sum(len(self.all(kind)) for kind in (Released, Lost, Withdrawn))
