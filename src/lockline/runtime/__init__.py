"""What the core needs of the world it runs in: time, waiting, and one background worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeVar

T = TypeVar("T")


class Alone(Protocol):
    """What only one thread at a time may do; see `section.Section`."""

    def __call__(self, work: Callable[..., T], *args: Any) -> T: ...
    def entered(self) -> bool:
        """Whether this very thread is inside, under whatever called us."""


class Signal(Protocol):
    """Something that can be set from any thread and waited for."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    async def wait(self, until: float | None) -> bool:
        """Whether it was set by then."""


class Mailbox(Protocol):
    """Hints for waiting claims, by claim id. One per client, whatever the number of waiters."""

    def open(self, key: str) -> None:
        """From now on a hint for this key is kept until somebody takes it."""

    def is_open(self, key: str) -> bool: ...
    def close(self, key: str) -> bool:
        """Nobody waits for this key any more; whether a hint lay there."""

    def deliver(self, key: str) -> None:
        """Hand over a hint, from any thread; one for a key that is not open is a stray."""

    def deliver_all(self) -> None: ...
    def wake(self, key: str) -> None:
        """End the wait for this key, from any thread, and leave the hint that may lie there where it is."""

    async def wait(self, key: str, until: float) -> bool:
        """Take the hint for this key, unless it was woken; False when nothing came by then."""


class Reader(Protocol):
    """A way to read pushes that a waiting thread can go itself: it saves the switch from a thread that listens."""

    def receive(self, seconds: float) -> list[str]:
        """Wait for pushes, at most that long; the ids of the claims that they speak of."""

    def nudge(self) -> None:
        """Make a `receive` in another thread return."""


class Runtime(Protocol):
    """Blocking threads, an asyncio loop, or a simulation."""

    @property
    def flavour(self) -> Literal["blocking", "asyncio", "simulated"]: ...

    def now(self) -> float: ...
    def wall(self) -> float:
        """The time of day, for people to read: nothing is decided by it."""

    def who(self) -> str:
        """This process, for people."""

    async def sleep(self, seconds: float) -> None: ...
    def section(self) -> Alone:
        """Runs one piece of work at a time, without an await in it, and is left however the work ends."""

    def signal(self) -> Signal: ...
    def mailbox(self, stray: Callable[[str], None], reader: Reader | None) -> Mailbox:
        """A mailbox; a hint that nobody here expects goes to `stray`.

        On the blocking runtime whichever waiting thread leads at the moment fetches hints with the reader; asyncio backends deliver
        from a task of their own and have none.
        """

    def spawn(self, work: Callable[[], Awaitable[None]], name: str, *, lasting: bool = False) -> Running:
        """Run this in the background: a daemon thread or a task.

        One that lasts is begun again when somebody cancels it who cancels every task there is. RuntimeError where no thread
        is to be had.
        """

    def call_aside(self, callback: Callable[[], object]) -> None:
        """Call the user's own code, which may take long, without keeping whoever asks for it: on a loop at once."""

    def here(self, callback: Callable[..., object]) -> Callable[..., object]:
        """The same callback for one who calls it from the background: it runs where its owner lives."""

    def me(self) -> object:
        """The thread or task that is running."""

    def waits_for(self, other: object, me: object) -> bool:
        """Whether that task is known to go on only after this one; never so for threads."""

    def ended(self, me: object) -> bool: ...
    def outcome(self, me: object) -> object:
        """What an ended task returned; None for threads."""


class Running(Protocol):
    """A background worker that can be waited for."""

    def alive(self) -> bool: ...
    async def join(self, until: float) -> None:
        """Wait for its end; what has not ended by then is cancelled where that can be done."""
