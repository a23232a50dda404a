"""Who hears of it when a fence says no. A fence belongs to no client, so those who listen do so for the whole process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..core.arguments import a_callback
from ..core.events import Event, FenceRefused, Listener
from ..core.listeners import Listeners
from ..observe.logging import log_event
from ..runtime.delivery import Delivery

if TYPE_CHECKING:
    from .rule import Mark, Offer

MOST: Final = 10_000
"""Refusals that wait for a slow listener, at most."""

# Module state, for the reason above; the log is the one listener that is always there.
_listeners = Listeners([log_event])
_delivery: Delivery[Event] = Delivery(_listeners, "lockline-refusals")


def on_refusal(listener: Listener) -> Callable[[], None]:
    """Call this with a FenceRefused for each refusal of any fence of this process; what is returned ends that."""
    a_callback(listener, "on_refusal")
    _listeners.add(listener)
    return lambda: _listeners.remove(listener)


def refused(resource: str, mark: Mark | None, offer: Offer) -> None:
    """A fence says no just now. Returns at once: whoever listens is called beside."""
    if len(_delivery) < MOST:
        highest = 0 if mark is None else mark.shown
        _delivery.put(
            FenceRefused(at=time.time(), resource=resource, lock=offer.lock, offered=offer.shown, highest=highest)
        )
