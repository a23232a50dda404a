"""A lock that is broken on purpose, on the user's own store: it shows that the checker bites here, on this machine and this clock.

Half of the workers ask for another name than the one that they say they hold, as two halves of a divided cluster would.
"""

from __future__ import annotations

from typing import Any, Final

from .plan import Settings

NAME: Final = "lockline.lab.verify.planted:divided"


class Divided:
    """A client, of whose locks some are not the ones that they are called."""

    def __init__(self, client: Any, astray: bool) -> None:
        self._client = client
        self._suffix = "~" if astray else ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def lock(self, name: str, **terms: Any) -> Any:
        """The lock, or one beside it."""
        return self._client.lock(name + self._suffix, **terms)

    def rwlock(self, name: str, **terms: Any) -> Any:
        """The same of a read-write lock."""
        return self._client.rwlock(name + self._suffix, **terms)

    def semaphore(self, name: str, **terms: Any) -> Any:
        """The same of a semaphore."""
        return self._client.semaphore(name + self._suffix, **terms)


def divided(settings: Settings, owner: str) -> Divided:
    """Every second worker of each flavour goes astray."""
    from .worker import lockline_client  # which has us loaded by our name

    return Divided(lockline_client(settings, owner), settings.number % 4 in (1, 2))
