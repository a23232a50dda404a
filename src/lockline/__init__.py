"""Lockline: the distributed lock that tells the truth about what it holds."""

from typing import TYPE_CHECKING, Any

from .core.claim import Line, Standing
from .errors import (
    AcquireTimeout,
    BackendUnavailable,
    ClientClosed,
    ConfigError,
    LeaseDropped,
    LeaseLost,
    LineFull,
    LocklineError,
    NotHeld,
    OnceFailed,
    QuorumNotReached,
    StaleToken,
    WouldDeadlock,
)
from .guarantees import Guarantees
from .sync import Client, Lease, Lock, RWLock, connect

if TYPE_CHECKING:
    from . import aio

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout",
    "BackendUnavailable",
    "Client",
    "ClientClosed",
    "ConfigError",
    "Guarantees",
    "Lease",
    "LeaseDropped",
    "LeaseLost",
    "Line",
    "LineFull",
    "Lock",
    "LocklineError",
    "NotHeld",
    "OnceFailed",
    "QuorumNotReached",
    "RWLock",
    "StaleToken",
    "Standing",
    "WouldDeadlock",
    "aio",
    "connect",
]


def __getattr__(name: str) -> Any:
    # asyncio alone is most of the time that `import lockline` would take; who does not use it does not pay for it.
    if name == "aio":
        import importlib

        return importlib.import_module(".aio", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
