"""To call somebody without keeping him alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weakly(method: Callable[..., object]) -> Callable[..., None]:
    """Calls this bound method for as long as its object lives by others; nothing after that."""
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        known = reference()
        if known is not None:
            known(*arguments)

    return call
