"""When a client begins to listen for the claims that it holds, where it does not listen anyway."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

from ..runtime import Running, Runtime

A_WHILE: Final = 0.25
"""Seconds between two visits of the keeper that count: it may come twice in a moment, and that is no long hold."""


class Attended(Protocol):
    """A claim of the client's own."""

    @property
    def state(self) -> str:
        """`holds` for one that holds and cannot be told of an eviction."""

    attended: bool
    """Whether it held the last time that the keeper came by: short holds shall not cost a connection."""


class Attending:
    """Listens in the background as soon as one has held for a while."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._listener: Running | None = None
        self._came = 0.0
        """When the keeper last came by."""

    def look(self, claims: Iterable[Attended], listen: Callable[[], Awaitable[None]]) -> None:
        """The keeper has come by."""
        now = self._runtime.now()
        if now < self._came + A_WHILE or (self._listener is not None and self._listener.alive()):
            return
        self._came = now
        unheard = [own for own in claims if own.state == "holds"]
        if any(own.attended for own in unheard):
            # Beside the keeper: it has deadlines to watch and must not wait for a connection.
            try:
                self._listener = self._runtime.spawn(listen, "lockline-listen")
            except RuntimeError:
                pass  # no thread to be had now
        for own in unheard:
            own.attended = True

    async def close(self) -> None:
        """Wait for one that is about to listen."""
        if self._listener is not None:
            await self._listener.join(self._runtime.now() + 1.0)
