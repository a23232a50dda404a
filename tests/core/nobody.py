"""A keeper that does nothing, for claims that a test looks after itself."""

from __future__ import annotations

from lockline.core.live import LiveClaim


class Nobody:
    """Hears all, and does nothing."""

    def ring(self) -> None: ...

    def hear_of_loss(self, live: LiveClaim) -> None: ...


NOBODY = Nobody()
