"""What happens to a client's claims: the events, for whoever listens by `connect(..., on_event=)`.

The log is always on (`logging`); `otel` and `prometheus` are listeners that make figures of the events.
"""

from ..core.events import (
    Asked,
    ClaimEvent,
    Event,
    Evicted,
    FenceRefused,
    Granted,
    Listener,
    Lost,
    Released,
    RenewalLate,
    Renewed,
    StoreBack,
    StoreEvent,
    StoreSilent,
    Waiting,
    Withdrawn,
)
from ..fence.refusals import on_refusal

__all__ = [
    "Asked",
    "ClaimEvent",
    "Event",
    "Evicted",
    "FenceRefused",
    "Granted",
    "Listener",
    "Lost",
    "Released",
    "RenewalLate",
    "Renewed",
    "StoreBack",
    "StoreEvent",
    "StoreSilent",
    "Waiting",
    "Withdrawn",
    "on_refusal",
]
