"""Marks alone, in Redis."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ...core.arguments import Seconds
from ...errors import BackendUnavailable, ConfigError
from ..door import Door
from ..rule import Mark, Offer
from .fence import RedisFence


class RedisMarks(Door):
    """Marks in Redis, for a door (HTTP, a script).

    A script cannot wait while a request runs: this keeps an older request out once a newer one has entered, but it
    cannot hold the newer one back while an older is still being served by *another process*. With one server process,
    or where the handler itself writes through a fence, nothing is missing.
    """

    def __init__(
        self, client: Any, *, prefix: str = "lockline:fence:", exact: bool = False, keep: Seconds | None = None
    ) -> None:
        """`keep`: forget a mark that nobody has used for that long. Only where no process sleeps longer than that."""
        self._fence = RedisFence(client, prefix=prefix, exact=exact, keep=keep)
        self.exact = self._fence.exact
        if inspect.iscoroutinefunction(getattr(client, "execute_command", None)):
            raise ConfigError("RedisMarks takes a blocking client; the middleware waits for it in a thread")

    def admit(self, resource: str, offer: Offer, *, writes: bool, patience: float) -> Callable[[], None]:
        """Raise the mark; StaleToken if it may not pass."""
        from redis.exceptions import RedisError

        try:
            (self._fence.check if writes else self._fence.enter)(resource, offer)
        except RedisError as problem:
            raise BackendUnavailable(f"the marks of {resource!r} cannot be reached: {problem}") from problem
        return _nothing

    def look(self, resource: str, lock: str) -> Mark | None:
        """The mark of this lock at the resource."""
        found: Mark | None = self._fence.look(resource, lock)
        return found


def _nothing() -> None:
    pass
